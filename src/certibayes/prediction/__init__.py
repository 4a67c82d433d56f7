"""Fixed weight samples as an ordinary ``nn.Module``."""

from certibayes.prediction.predictor import Predictor, RegressionPredictor

__all__ = ["Predictor", "RegressionPredictor"]
