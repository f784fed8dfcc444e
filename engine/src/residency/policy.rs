//! Residency policies: the order in which experts are wanted, and the victim of a promotion.

use std::cmp::Reverse;

use super::ExpertId;

/// What a policy may look at, one entry an expert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Routes counted on other text; zeros without a heatmap.
    pub prior: Vec<u64>,
    /// Routes counted in decode since the engine was made.
    pub uses: Vec<u64>,
    /// Decode step of the last use; 0 for never.
    pub last_used: Vec<u64>,
}

impl Usage {
    /// Nothing used yet; `prior` has one entry an expert.
    pub fn new(prior: Vec<u64>) -> Self {
        let experts = prior.len();
        Self { prior, uses: vec![0; experts], last_used: vec![0; experts] }
    }
    /// Experts known.
    pub fn experts(&self) -> usize {
        self.prior.len()
    }
    /// Prior and observed routes together.
    pub fn frequency(&self, expert: ExpertId) -> u64 {
        self.prior[expert.index()].saturating_add(self.uses[expert.index()])
    }
    /// How recently, then how often: larger stays longer. Ties go to the lower index.
    fn recency(&self, expert: ExpertId) -> (u64, u64, Reverse<ExpertId>) {
        (self.last_used[expert.index()], self.frequency(expert), Reverse(expert))
    }
    /// How often, then how recently: larger stays longer. Ties go to the lower index.
    fn heat(&self, expert: ExpertId) -> (u64, u64, Reverse<ExpertId>) {
        (self.frequency(expert), self.last_used[expert.index()], Reverse(expert))
    }
    fn sorted_by<K: Ord>(&self, key: impl Fn(ExpertId) -> K) -> Vec<ExpertId> {
        let mut experts: Vec<ExpertId> = (0..self.experts() as u32).map(ExpertId).collect();
        experts.sort_by_key(|&expert| Reverse(key(expert)));
        experts
    }
}

/// The policies that a config can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyKind {
    /// Every miss may be promoted; the least recently used expert leaves.
    Lru,
    /// A miss is promoted only over an expert that is routed to less often.
    Frequency,
    /// The hottest experts stay; a tail is least-recently-used.
    #[default]
    FrequencyLru,
}

impl PolicyKind {
    /// Every policy, for sweeps.
    pub const ALL: [PolicyKind; 3] = [PolicyKind::Lru, PolicyKind::Frequency, PolicyKind::FrequencyLru];

    /// The policy itself.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(Lru),
            PolicyKind::Frequency => Box::new(Frequency),
            PolicyKind::FrequencyLru => Box::new(FrequencyLru::default()),
        }
    }
    /// As written in configs and records.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::Frequency => "frequency",
            PolicyKind::FrequencyLru => "frequency_lru",
        }
    }
}

/// A residency policy. Its answers change speed, never results.
pub trait Policy: Send {
    /// All experts, the most wanted first.
    fn ranking(&self, usage: &Usage) -> Vec<ExpertId>;
    /// Told which experts are resident after slots were filled from the ranking.
    fn filled(&mut self, _residents: &[ExpertId], _usage: &Usage) {}
    /// Which of `residents` leaves for `incoming`, or `None` to leave things as they are.
    fn victim(
        &self,
        usage: &Usage,
        incoming: ExpertId,
        residents: &mut dyn Iterator<Item = ExpertId>,
    ) -> Option<ExpertId>;
}

/// Least recently used.
struct Lru;

impl Policy for Lru {
    fn ranking(&self, usage: &Usage) -> Vec<ExpertId> {
        usage.sorted_by(|expert| usage.recency(expert))
    }
    fn victim(
        &self,
        usage: &Usage,
        _incoming: ExpertId,
        residents: &mut dyn Iterator<Item = ExpertId>,
    ) -> Option<ExpertId> {
        residents.min_by_key(|&expert| usage.recency(expert))
    }
}

/// Most often used.
struct Frequency;

impl Policy for Frequency {
    fn ranking(&self, usage: &Usage) -> Vec<ExpertId> {
        usage.sorted_by(|expert| usage.heat(expert))
    }
    fn victim(
        &self,
        usage: &Usage,
        incoming: ExpertId,
        residents: &mut dyn Iterator<Item = ExpertId>,
    ) -> Option<ExpertId> {
        let coldest = residents.min_by_key(|&expert| usage.heat(expert))?;
        (usage.frequency(coldest) < usage.frequency(incoming)).then_some(coldest)
    }
}

/// A core by frequency, a tail by recency.
#[derive(Default)]
struct FrequencyLru {
    core: Vec<bool>,
}

impl FrequencyLru {
    /// Of four residents one belongs to the tail: enough to follow a request, too few for churn to become the workload.
    const TAIL_DIVISOR: usize = 4;
}

impl Policy for FrequencyLru {
    fn ranking(&self, usage: &Usage) -> Vec<ExpertId> {
        usage.sorted_by(|expert| usage.heat(expert))
    }
    fn filled(&mut self, residents: &[ExpertId], usage: &Usage) {
        let mut hottest = residents.to_vec();
        hottest.sort_by_key(|&expert| Reverse(usage.heat(expert)));
        let tail = hottest.len().div_ceil(Self::TAIL_DIVISOR);
        self.core = vec![false; usage.experts()];
        for expert in &hottest[..hottest.len() - tail] {
            self.core[expert.index()] = true;
        }
    }
    fn victim(
        &self,
        usage: &Usage,
        _incoming: ExpertId,
        residents: &mut dyn Iterator<Item = ExpertId>,
    ) -> Option<ExpertId> {
        residents
            .filter(|expert| !self.core.get(expert.index()).copied().unwrap_or(false))
            .min_by_key(|&expert| usage.recency(expert))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prior: &[u64], last_used: &[u64]) -> Usage {
        let mut usage = Usage::new(prior.to_vec());
        usage.last_used = last_used.to_vec();
        usage
    }

    fn victim(kind: PolicyKind, usage: &Usage, residents: &[u32], incoming: u32) -> Option<u32> {
        let residents: Vec<ExpertId> = residents.iter().copied().map(ExpertId).collect();
        let mut policy = kind.build();
        policy.filled(&residents, usage);
        policy.victim(usage, ExpertId(incoming), &mut residents.iter().copied()).map(|expert| expert.0)
    }

    #[test]
    fn each_policy_chooses_its_victim() {
        let usage = usage(&[9, 1, 5, 5, 2, 8], &[1, 7, 3, 2, 6, 4]);
        // least recent of 0, 1, 2 is 0
        assert_eq!(victim(PolicyKind::Lru, &usage, &[0, 1, 2], 5), Some(0));
        // coldest of 0, 1, 2 is 1, and 5 is hotter
        assert_eq!(victim(PolicyKind::Frequency, &usage, &[0, 1, 2], 5), Some(1));
        // 4 (heat 2) is not hotter than the coldest of 2 and 3 (heat 5)
        assert_eq!(victim(PolicyKind::Frequency, &usage, &[2, 3], 4), None);
        // one of four is tail: 1, the coldest, though 0 is least recent
        assert_eq!(victim(PolicyKind::FrequencyLru, &usage, &[0, 1, 2, 5], 3), Some(1));
    }

    #[test]
    fn rankings_break_ties_by_the_lower_index() {
        let usage = usage(&[3, 7, 3, 7], &[0; 4]);
        for kind in PolicyKind::ALL {
            let order: Vec<u32> = kind.build().ranking(&usage).iter().map(|expert| expert.0).collect();
            assert_eq!(order, [1, 3, 0, 2], "{kind:?}");
        }
    }
}
