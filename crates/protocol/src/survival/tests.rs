use super::*;

/// All sets of `size` of so many, as bits.
fn sets(of: u32, size: u32) -> impl Iterator<Item = u32> {
    (0..1_u32 << of).filter(move |set| set.count_ones() == size)
}

fn is_near(one: f64, other: f64, what: &str) {
    assert!((one - other).abs() < 1e-9, "{what}: {one} is not {other}");
}

/// The share of all losses after which every lost node has an image elsewhere.
fn counted(nodes: u32, lost: u32, goes_on: impl Fn(u32) -> bool) -> f64 {
    let good = sets(nodes, lost).filter(|set| goes_on(*set)).count();
    good as f64 / sets(nodes, lost).count() as f64
}

#[test]
fn random_replicas_are_as_counted_over_all_placements() {
    // Each of 5 nodes draws one of the 6 pairs of others: 7,776 placements.
    let (nodes, replicas) = (5, 2);
    let choices: Vec<Vec<u32>> = (0..nodes)
        .map(|node| sets(nodes, replicas).filter(|set| set & (1 << node) == 0).collect())
        .collect();
    let placements = choices.iter().map(Vec::len).product::<usize>();
    for lost in 1..nodes {
        let set = (1_u32 << lost) - 1;
        let goes_on = |mut placement: usize| {
            choices.iter().enumerate().all(|(node, sets)| {
                let at = sets[placement % sets.len()];
                placement /= sets.len();
                set & (1 << node) == 0 || at & !set != 0
            })
        };
        let good = (0..placements).filter(|placement| goes_on(*placement)).count();
        let found = chance(nodes, lost, Placement::Random { replicas });
        is_near(found, good as f64 / placements as f64, &format!("{lost} lost"));
    }
}

#[test]
fn rings_are_as_counted() {
    for (nodes, replicas) in [(2, 1), (7, 1), (12, 1), (12, 2), (13, 3), (5, 4)] {
        for lost in 0..=nodes {
            let goes_on = |set: u32| {
                (0..nodes).all(|node| {
                    let at = |step: u32| 1_u32 << ((node + step) % nodes);
                    (0..=replicas).any(|step| set & at(step) == 0)
                })
            };
            let found = chance(nodes, lost, Placement::Ring { replicas });
            is_near(
                found,
                counted(nodes, lost, goes_on),
                &format!("{nodes} nodes, {replicas}, {lost} lost"),
            );
        }
    }
}

#[test]
fn groups_with_parity_are_as_counted_also_if_the_last_is_smaller() {
    // The nodes of each group. The last of 13 nodes joins another group; one of the last two can be lost.
    let cases: [(&[u32], u32, u32); 8] = [
        (&[2, 2, 2, 2], 1, 1),
        (&[4, 4, 4], 3, 1),
        (&[6, 6], 4, 2),
        (&[6, 6, 2], 4, 2),
        (&[6, 7], 4, 2),
        (&[6, 4], 3, 3),
        (&[3], 8, 2),
        (&[2], 1, 2),
    ];
    for (sizes, data, parity) in cases {
        let nodes = sizes.iter().sum();
        for lost in 0..nodes {
            let goes_on = |set: u32| {
                let mut first = 0;
                sizes.iter().all(|size| {
                    let group = ((1_u32 << size) - 1) << first;
                    first += size;
                    (set & group).count_ones() <= parity.min(size - 1)
                })
            };
            let found = chance(nodes, lost, Placement::Parity { data, parity });
            is_near(
                found,
                counted(nodes, lost, goes_on),
                &format!("{nodes} nodes, {data}+{parity}, {lost} lost"),
            );
        }
    }
}

#[test]
fn racks_are_as_counted_over_all_placements() {
    // 3 racks of 2 nodes, one replica: each of 6 nodes has 4 nodes of other racks to draw from, or any of 5.
    let (nodes, racks) = (6_u32, 3);
    for apart in [true, false] {
        let choices: Vec<Vec<u32>> = (0..nodes)
            .map(|node| {
                (0..nodes)
                    .filter(|other| *other != node && (!apart || other / 2 != node / 2))
                    .collect()
            })
            .collect();
        let placements = choices.iter().map(Vec::len).product::<usize>();
        for lost in 1..racks {
            let goes_on = |mut placement: usize| {
                choices.iter().enumerate().all(|(node, others)| {
                    let at = others[placement % others.len()];
                    placement /= others.len();
                    node as u32 / 2 >= lost || at / 2 >= lost
                })
            };
            let good = (0..placements).filter(|placement| goes_on(*placement)).count();
            let found = chance_of_racks(nodes, racks, lost, 1, apart);
            is_near(
                found,
                good as f64 / placements as f64,
                &format!("{lost} racks, {apart}"),
            );
        }
    }
}

#[test]
fn two_replicas_in_racks_of_their_own_survive_any_two_racks() {
    is_near(chance_of_racks(64, 8, 2, 2, true), 1.0, "apart");
    assert!(chance_of_racks(64, 8, 2, 2, false) < 0.7);
    assert!(chance_of_racks(64, 8, 3, 2, true) < 0.5);
}

#[test]
fn large_jobs_are_counted_without_overflow() {
    for placement in [
        Placement::Random { replicas: 2 },
        Placement::Ring { replicas: 2 },
        Placement::Parity { data: 6, parity: 2 },
    ] {
        let chances: Vec<f64> = (0..=2048)
            .step_by(64)
            .map(|lost| chance(2048, lost, placement))
            .collect();
        assert!(chances.iter().all(|one| (0.0..=1.0).contains(one)), "{chances:?}");
        assert!(chances.is_sorted_by(|one, other| one >= other), "{chances:?}");
    }
    // One partner for each: no two neighbours, which can be told in one line.
    let ways: f64 = (0..40)
        .map(|i| (f64::from(2008 - i) / f64::from(2048 - i)).ln())
        .sum::<f64>()
        + (2048.0_f64 / 2008.0).ln();
    is_near(chance(2048, 40, Placement::Ring { replicas: 1 }), ways.exp(), "ring");
}

#[test]
fn the_most_is_the_last_with_that_chance() {
    for replicas in 1..=4 {
        for wanted in [0.9, 0.99, 0.999] {
            let placement = Placement::Random { replicas };
            let most = most_lost(256, placement, wanted);
            assert!(chance(256, most, placement) >= wanted && chance(256, most + 1, placement) < wanted);
            assert!(most >= replicas);
        }
    }
    assert_eq!(most_lost(2048, Placement::Random { replicas: 4 }, 0.999), 113);
    assert_eq!(most_lost(8, Placement::Random { replicas: 4 }, 0.9), 4);
    assert_eq!(most_lost(1, Placement::Random { replicas: 1 }, 0.9), 0);
}
