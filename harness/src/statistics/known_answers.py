"""Prints the known answers of `tests.rs`: pip install scipy statsmodels; python known_answers.py"""

import math

import numpy
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

LEFT = [3.1, 2.7, 9.9, 3.3, 2.9, 3.0, 3.2, 2.8, 3.05]
RIGHT = [2.9, 2.8, 9.1, 3.35, 2.5, 3.15, 2.6, 2.75, 2.95]


def bootstrap(statistic, data, paired):
    return stats.bootstrap(data, statistic, paired=paired, vectorized=False, n_resamples=20_000, method="percentile",
                           rng=numpy.random.default_rng(1)).confidence_interval


print("bootstrap median", numpy.median(LEFT), bootstrap(numpy.median, (LEFT,), False))
logs = numpy.log(numpy.array(LEFT) / numpy.array(RIGHT))
interval = bootstrap(numpy.median, (logs,), False)
print("bootstrap paired ratio", math.exp(numpy.median(logs)), math.exp(interval.low), math.exp(interval.high))
ratio = lambda left, right: numpy.median(left) / numpy.median(right)
print("bootstrap ratio of medians", ratio(LEFT, RIGHT), bootstrap(ratio, (LEFT, RIGHT), False))
for successes, trials in [(4, 4), (0, 10), (7, 20), (999, 1000)]:
    print("wilson", successes, trials, proportion_confint(successes, trials, method="wilson"))
for only_left, only_right in [(0, 0), (1, 9), (12, 5), (30, 31)]:
    print("mcnemar", only_left, only_right, mcnemar([[0, only_left], [only_right, 0]], exact=True).pvalue)
many = [(7 * index % 31) / 3 + index / 7 for index in range(20)]
more = [(5 * index % 29) / 3 + index / 11 + 2 for index in range(15)]
for left, right in [(LEFT[:8], RIGHT[:7]), (many, more), ([1, 2, 2, 3, 4, 4, 5, 6, 7, 8], [2, 3, 3, 4, 5, 9, 9, 10, 11])]:
    print("mann-whitney", stats.mannwhitneyu(left, right))
for attempts, successes, k in [(10, 3, 1), (10, 3, 5), (10, 8, 3), (200, 13, 100)]:
    failures = math.comb(attempts - successes, k) / math.comb(attempts, k)
    print("pass", attempts, successes, k, 1 - failures, math.comb(successes, k) / math.comb(attempts, k))
