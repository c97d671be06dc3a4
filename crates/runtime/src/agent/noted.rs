//! What the dispatcher knows of what ranks note of files.

/// What the dispatcher knows of a rank's notes.
#[derive(Default)]
pub(super) struct Told {
    pub noted: Vec<u64>,
    pub undo: ToldOfUndo,
    /// Another node had noted it, and no life has begun here since.
    pub is_handed_over: bool,
}

/// Since which image the undo log is whole, its half, and how many words of it are known. None: all of it is news.
pub(super) type ToldOfUndo = Option<(u64, usize, usize)>;

/// Notes that differ, with their places. Both begin with a count.
pub(super) fn changed(before: &[u64], now: &[u64]) -> Vec<(usize, [u64; 2])> {
    let note = |words: &[u64], place: usize| words.get(1 + 2 * place..3 + 2 * place).map(|two| [two[0], two[1]]);
    let places = 0..now.len() / 2;
    let differing = places.filter(|place| note(before, *place) != note(now, *place));
    differing.filter_map(|place| Some((place, note(now, place)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_of_the_notes_is_told() {
        assert_eq!(changed(&[], &[0]), []);
        let all = vec![(0, [1, 2]), (1, [3, 4])];
        assert_eq!(changed(&[], &[2, 1, 2, 3, 4]), all);
        let later = changed(&[2, 1, 2, 3, 4], &[3, 1, 2, 3, 5, 6, 7]);
        assert_eq!(later, [(1, [3, 5]), (2, [6, 7])]);
    }
}
