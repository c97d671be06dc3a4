//! Similar names: what the user may have meant.

/// The name in `names` that is most like `name`, if any is like it.
pub fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let like = |candidate: &str| strsim::damerau_levenshtein(name, candidate);
    let best = names.iter().min_by_key(|candidate| like(candidate))?;
    (like(best) <= 1 + best.len() / 3).then_some(*best)
}
