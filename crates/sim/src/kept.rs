//! The images of one rank that recoveries may begin from.

use crate::mutation::Mutation;

/// Complete images that are kept of each rank.
pub(crate) const KEPT_IMAGES: usize = 2;

#[derive(Debug, Clone)]
pub(crate) struct KeptImages<I> {
    /// The oldest first; they survive everything.
    pub complete: Vec<I>,
    pub under_way: Option<Box<I>>,
    /// There have been enough of them to drop something.
    pub collects: bool,
}

impl<I> Default for KeptImages<I> {
    fn default() -> Self {
        Self {
            complete: Vec::new(),
            under_way: None,
            collects: false,
        }
    }
}

impl<I> KeptImages<I> {
    /// The one under way counts from now on, and the oldest is given up; whether there was one under way.
    pub fn complete(&mut self) -> bool {
        let Some(image) = self.under_way.take() else {
            return false;
        };
        self.complete.push(*image);
        if self.complete.len() > KEPT_IMAGES {
            self.complete.remove(0);
        }
        self.collects |= self.complete.len() == KEPT_IMAGES;
        true
    }

    /// What this one covers may be dropped: a recovery that finds the newer one destroyed begins from it.
    pub fn covering(&self, mutation: Option<Mutation>) -> Option<&I> {
        let mut images: Vec<&I> = self.complete.iter().collect();
        if mutation == Some(Mutation::CollectBeforeComplete) {
            images.extend(self.under_way.as_deref());
            images.drain(..images.len().saturating_sub(KEPT_IMAGES));
        }
        match images[..] {
            [_, newer] if mutation == Some(Mutation::CollectByNewest) => Some(newer),
            [older, _] => Some(older),
            [only] if mutation == Some(Mutation::CollectBySingle) => Some(only),
            _ => None,
        }
    }

    /// Whether the newest may be lost. The only one there is after older ones were given up is not: that would be more than is tolerated.
    pub fn may_lose_newest(&self) -> bool {
        self.complete.len() == KEPT_IMAGES || (!self.collects && !self.complete.is_empty())
    }
}
