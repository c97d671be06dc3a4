//! The chance that a job can go on from its images after some of its nodes have been lost at once (Walters 2007, §4.3
//! and Table 1). All figures are exact: counted, not drawn.

use crate::placement::Parity;

/// Where the image of a node is besides the node itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On so many other nodes, drawn for each node anew.
    Random { replicas: u32 },
    /// On the next so many nodes of a ring.
    Ring { replicas: u32 },
    /// Groups of `data` + `parity` nodes, each of which can lose any `parity`: see [`Parity`].
    Parity { data: u32, parity: u32 },
}

/// The chance that a job can go on when `lost` of its `nodes`, drawn at random, are lost at once.
pub fn chance(nodes: u32, lost: u32, placement: Placement) -> f64 {
    if lost == 0 {
        return 1.0;
    }
    if lost >= nodes {
        return 0.0;
    }
    match placement {
        // The replicas of a lost node say nothing about those of another, so their chances multiply.
        Placement::Random { replicas } => kept(nodes - 1, lost - 1, replicas).powf(f64::from(lost)),
        // No run of more than `replicas` lost nodes. Each of the others begins a stretch of the ring, with 0 to
        // `replicas` lost ones. Stretches are counted in a row; of the turns of the ring each is found once per other.
        Placement::Ring { replicas } => {
            let others = nodes - lost;
            let stretch = vec![1.0; replicas as usize + 1];
            let ways = ln_ways(&[(stretch, others)], lost);
            (ways + f64::from(nodes).ln() - f64::from(others).ln() - ln_choose(nodes, lost)).exp()
        }
        Placement::Parity { data, parity } => {
            // The very groups that images are dealt into, with ranks on all of their nodes.
            let parity = Parity { data, parity };
            let group = |size: u32| (0..=parity.of(size)).map(|lost| ln_choose(size, lost).exp()).collect();
            let sizes = parity.sizes(nodes).into_iter();
            let parts: Vec<(Vec<f64>, u32)> = sizes.map(|(size, count)| (group(size), count)).collect();
            (ln_ways(&parts, lost) - ln_choose(nodes, lost)).exp()
        }
    }
    .min(1.0)
}

/// The most nodes that can be lost at once if the job shall go on with this chance.
pub fn most_lost(nodes: u32, placement: Placement, wanted: f64) -> u32 {
    // The chance falls with every lost node.
    let (mut enough, mut too_many) = (0, nodes);
    while too_many - enough > 1 {
        let middle = enough + (too_many - enough) / 2;
        match chance(nodes, middle, placement) >= wanted {
            true => enough = middle,
            false => too_many = middle,
        }
    }
    enough
}

/// The chance that a job can go on when `lost` of `racks`, all with equally many of the `nodes`, are lost at once.
/// `apart`: replicas are in racks of their own, other than the node's. Otherwise they are anywhere.
pub fn chance_of_racks(nodes: u32, racks: u32, lost: u32, replicas: u32, apart: bool) -> f64 {
    if lost == 0 {
        return 1.0;
    }
    if lost >= racks {
        return 0.0;
    }
    let gone = nodes / racks * lost;
    let kept = match apart {
        true => kept(racks - 1, lost - 1, replicas),
        false => kept(nodes - 1, gone - 1, replicas),
    };
    kept.powf(f64::from(gone))
}

/// The chance that of so many replicas in different places one is not `lost`.
fn kept(places: u32, lost: u32, replicas: u32) -> f64 {
    let replicas = replicas.min(places);
    if lost < replicas {
        return 1.0;
    }
    1.0 - (ln_choose(lost, replicas) - ln_choose(places, replicas)).exp()
}

fn ln_choose(from: u32, what: u32) -> f64 {
    let what = what.min(from.saturating_sub(what));
    (0..what)
        .map(|i| (f64::from(from - i) / f64::from(what - i)).ln())
        .sum()
}

/// The logarithm of the number of ways to have `lost` in all, where each part may have as many as its list is long, in
/// so many ways each, and is there so many times. Negative infinity: there is none.
fn ln_ways(parts: &[(Vec<f64>, u32)], lost: u32) -> f64 {
    // The numbers have thousands of digits. So each is weighted by a power of `tilt` that makes `lost` the likeliest
    // sum, and each list is made a distribution. Both are taken out again at the end.
    let most: f64 = parts
        .iter()
        .map(|(ways, count)| (ways.len() - 1) as f64 * f64::from(*count))
        .sum();
    if f64::from(lost) > most {
        return f64::NEG_INFINITY;
    }
    let tilt = tilt(parts, f64::from(lost));
    let mut sum = vec![1.0];
    let mut scale = 0.0;
    for (ways, count) in parts {
        let weighted = weighted(ways, tilt);
        let all: f64 = weighted.iter().sum();
        scale += f64::from(*count) * all.ln();
        let mut power: Vec<f64> = weighted.iter().map(|one| one / all).collect();
        let mut left = *count;
        while left > 0 {
            if left % 2 == 1 {
                sum = product(&sum, &power, lost);
            }
            left /= 2;
            if left > 0 {
                power = product(&power, &power, lost);
            }
        }
    }
    let found = sum.get(lost as usize).copied().unwrap_or(0.0);
    found.ln() + scale - f64::from(lost) * tilt.ln()
}

fn weighted(ways: &[f64], tilt: f64) -> Vec<f64> {
    (0..).zip(ways).map(|(lost, one)| one * tilt.powi(lost)).collect()
}

/// With this weight the parts have `lost` in all, in the mean.
fn tilt(parts: &[(Vec<f64>, u32)], lost: f64) -> f64 {
    let mean = |tilt: f64| -> f64 {
        let of = |(ways, count): &(Vec<f64>, u32)| {
            let weighted = weighted(ways, tilt);
            let sum: f64 = weighted.iter().sum();
            let lost: f64 = weighted.iter().enumerate().map(|(lost, one)| lost as f64 * one).sum();
            f64::from(*count) * lost / sum
        };
        parts.iter().map(of).sum()
    };
    let (mut low, mut high): (f64, f64) = (1e-12, 1e6);
    for _ in 0..100 {
        let middle = (low * high).sqrt();
        match mean(middle) < lost {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

/// The product of two polynomials, up to the power `most`.
fn product(one: &[f64], other: &[f64], most: u32) -> Vec<f64> {
    let length = (one.len() + other.len() - 1).min(most as usize + 1);
    let mut product = vec![0.0; length];
    for (i, a) in one.iter().enumerate().filter(|(_, a)| **a > 0.0) {
        for (b, place) in other.iter().zip(product.iter_mut().skip(i)) {
            *place += a * b;
        }
    }
    product
}

#[cfg(test)]
mod tests;
