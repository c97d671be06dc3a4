//! Whether a job can go on after some of its nodes are lost at once, drawn node by node (Walters 2007, §4.3). It shares
//! nothing with the counted chances of `protocol/survival.rs`, and checks them; what cannot be counted is told from here.

use crate::random::Random;

/// Where the image of each node is besides the node itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// On so many others, drawn for each node.
    Anywhere { replicas: u32 },
    /// On so many others in racks of their own, all as large, and none of them the node's own.
    Apart { replicas: u32, racks: u32 },
    /// On the next so many of a ring.
    Next { replicas: u32 },
    /// Groups of this size lose no image with any `parity` of their nodes. A single last node is in the group before; a
    /// group never loses all of its nodes.
    Groups { size: u32, parity: u32 },
}

/// The share of `trials` in which the job can go on when `lost` of its `nodes` are lost at once.
pub fn drawn(layout: Layout, nodes: u32, lost: u32, trials: u32, random: &mut Random) -> f64 {
    let mut order: Vec<u32> = (0..nodes).collect();
    let mut is_lost = vec![false; nodes as usize];
    let mut good = 0;
    for _ in 0..trials {
        shuffle(&mut order, lost, random);
        let gone = &order[..lost as usize];
        gone.iter().for_each(|node| is_lost[*node as usize] = true);
        good += u32::from(goes_on(layout, nodes, gone, &is_lost, random));
        gone.iter().for_each(|node| is_lost[*node as usize] = false);
    }
    f64::from(good) / f64::from(trials)
}

/// The same when so many whole racks are lost; not for rings and groups.
pub fn drawn_racks(layout: Layout, nodes: u32, racks: u32, lost: u32, trials: u32, random: &mut Random) -> f64 {
    let gone: Vec<u32> = (0..nodes / racks * lost).collect();
    let is_lost: Vec<bool> = (0..nodes).map(|node| node < gone.len() as u32).collect();
    let good = (0..trials)
        .filter(|_| goes_on(layout, nodes, &gone, &is_lost, random))
        .count();
    good as f64 / f64::from(trials)
}

/// The first `count` become a random selection in random order.
fn shuffle(order: &mut [u32], count: u32, random: &mut Random) {
    for place in 0..count as usize {
        let other = place + random.below((order.len() - place) as u64) as usize;
        order.swap(place, other);
    }
}

fn goes_on(layout: Layout, nodes: u32, gone: &[u32], is_lost: &[bool], random: &mut Random) -> bool {
    let is_lost = |node: u32| is_lost[node as usize];
    match layout {
        Layout::Anywhere { replicas } => gone.iter().all(|node| {
            let mut taken = vec![*node];
            (0..replicas.min(nodes - 1)).fold(false, |kept, _| {
                let at = another(nodes, &taken, random);
                taken.push(at);
                kept || !is_lost(at)
            })
        }),
        Layout::Apart { replicas, racks } => {
            let size = nodes / racks;
            gone.iter().all(|node| {
                let mut taken = vec![node / size];
                (0..replicas.min(racks - 1)).fold(false, |kept, _| {
                    let rack = another(racks, &taken, random);
                    taken.push(rack);
                    kept || !is_lost(rack * size + random.below(u64::from(size)) as u32)
                })
            })
        }
        Layout::Next { replicas } => gone
            .iter()
            .all(|node| (1..=replicas).any(|step| !is_lost((node + step) % nodes))),
        Layout::Groups { size, parity } => {
            let mut first = 0;
            while first < nodes {
                let left = nodes - first;
                let size = if left == size + 1 { left } else { size.min(left) };
                let lost = (first..first + size).filter(|node| is_lost(*node)).count();
                if lost > parity.min(size - 1) as usize {
                    return false;
                }
                first += size;
            }
            true
        }
    }
}

/// A number below `bound` that is not taken yet.
fn another(bound: u32, taken: &[u32], random: &mut Random) -> u32 {
    loop {
        let one = random.below(u64::from(bound)) as u32;
        if !taken.contains(&one) {
            return one;
        }
    }
}

/// The most nodes that can be lost at once if the job shall go on with this chance, for layouts that nobody counts:
/// drawn, with errors of a node or two in a hundred.
pub fn most_drawn(layout: Layout, nodes: u32, wanted: f64, trials: u32, random: &mut Random) -> u32 {
    let (mut enough, mut too_many) = (0, nodes);
    while too_many - enough > 1 {
        let middle = enough + (too_many - enough) / 2;
        match drawn(layout, nodes, middle, trials, random) >= wanted {
            true => enough = middle,
            false => too_many = middle,
        }
    }
    enough
}

#[cfg(test)]
mod tests {
    use resurgo_protocol::survival::{Placement, chance, chance_of_racks, most_lost};

    use super::*;

    const TRIALS: u32 = 20_000;

    #[track_caller]
    fn is_near(drawn: f64, counted: f64, what: &str) {
        // Five standard deviations.
        let error = 5.0 * (counted * (1.0 - counted) / f64::from(TRIALS)).sqrt();
        assert!(
            (drawn - counted).abs() <= error + 1e-9,
            "{what}: {drawn} drawn, {counted} counted"
        );
    }

    #[test]
    fn counted_chances_are_those_of_drawn_jobs() {
        let mut random = Random::new(1);
        let layouts = [
            (Layout::Anywhere { replicas: 1 }, Placement::Random { replicas: 1 }),
            (Layout::Anywhere { replicas: 3 }, Placement::Random { replicas: 3 }),
            (Layout::Next { replicas: 1 }, Placement::Ring { replicas: 1 }),
            (Layout::Next { replicas: 2 }, Placement::Ring { replicas: 2 }),
            (
                Layout::Groups { size: 6, parity: 2 },
                Placement::Parity { data: 4, parity: 2 },
            ),
        ];
        for (layout, placement) in layouts {
            for (nodes, lost) in [(16, 3), (64, 8), (130, 12), (512, 20)] {
                let what = format!("{layout:?}, {lost} of {nodes}");
                let drawn = drawn(layout, nodes, lost, TRIALS, &mut random);
                is_near(drawn, chance(nodes, lost, placement), &what);
            }
        }
    }

    #[test]
    fn racks_too() {
        let mut random = Random::new(2);
        for (apart, layout) in [
            (true, Layout::Apart { replicas: 2, racks: 8 }),
            (false, Layout::Anywhere { replicas: 2 }),
        ] {
            for lost in 1..5 {
                let drawn = drawn_racks(layout, 64, 8, lost, TRIALS, &mut random);
                let what = format!("{lost} racks, apart: {apart}");
                is_near(drawn, chance_of_racks(64, 8, lost, 2, apart), &what);
            }
        }
    }

    #[test]
    fn the_most_is_found_by_drawing_too() {
        let mut random = Random::new(3);
        let most = most_drawn(Layout::Anywhere { replicas: 2 }, 128, 0.9, TRIALS, &mut random);
        assert!(most.abs_diff(most_lost(128, Placement::Random { replicas: 2 }, 0.9)) <= 1);
    }
}
