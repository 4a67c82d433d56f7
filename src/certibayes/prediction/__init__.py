"""Fixed weight samples as an ordinary ``nn.Module``."""

from certibayes.prediction.predictor import Predictor, RegressionPredictor, domain_of_all

__all__ = ["Predictor", "RegressionPredictor", "domain_of_all"]
