use super::*;

const SECOND: u64 = 1_000_000_000;

fn times(program: Program, group: Rank, moment: Option<u64>) -> Times {
    run(Run {
        program,
        ranks: 32,
        group,
        moment: moment.map(|seconds| seconds * SECOND),
        costs: Costs {
            latency: 5_000,
            bandwidth: 900_000_000,
            logger: 0,
            point: None,
        },
        storage: Storage {
            bandwidth: 140_000_000,
            client: 50_000_000,
            image: 180_000_000,
        },
    })
    .unwrap()
}

fn groups(size: Rank, barrier: u64) -> Program {
    Program::Groups {
        size,
        barrier: barrier * SECOND,
        length: 70 * SECOND,
    }
}

/// Of checkpoints of these groups, each asked for at one of these moments, in seconds.
fn delays<const N: usize>(program: Program, checkpoints: [(Rank, u64); N]) -> [f64; N] {
    let undisturbed = times(program, 32, None).run;
    checkpoints.map(|(group, moment)| (times(program, group, Some(moment)).run - undisturbed) as f64 / 1e9)
}

/// Where all stand still together, all three times are that of the store (2a, 2b).
#[test]
fn together_everything_takes_the_time_of_the_store() {
    let program = groups(8, 0);
    let Times { total, individual, .. } = times(program, 32, Some(10));
    let stored = 32.0 * 180.0 / 140.0;
    for seconds in [
        delays(program, [(32, 10)])[0],
        total as f64 / 1e9,
        individual as f64 / 1e9,
    ] {
        assert!((seconds - stored).abs() < 0.05, "{seconds} s, {stored} s");
    }
}

/// §6.1, Figure 3.
#[test]
fn the_delay_is_halved_with_the_checkpoint_group_down_to_the_communication_group() {
    const CHECKPOINTED: [Rank; 6] = [32, 16, 8, 4, 2, 1];
    let delays = delays(groups(8, 0), CHECKPOINTED.map(|group| (group, 10)));
    for (group, pair) in CHECKPOINTED[1..].iter().zip(delays.windows(2)) {
        let ratio = pair[1] / pair[0];
        let expected = if *group >= 8 { 0.48..0.52 } else { 0.95..2.1 };
        assert!(expected.contains(&ratio), "groups of {group}: {delays:?}");
    }
}

/// §5, 3c; §6.1, Figure 4.
#[test]
fn the_delay_grows_towards_a_barrier_and_stays_within_its_bounds() {
    let program = groups(8, 60);
    let moments = [(8, 5), (8, 30), (8, 45), (8, 55)];
    let delays = delays(program, moments);
    for ((group, moment), delay) in moments.into_iter().zip(delays) {
        let Times { total, individual, .. } = times(program, group, Some(moment));
        let bounds = individual as f64 / 1e9 - 0.05..total as f64 / 1e9 + 0.05;
        assert!(bounds.contains(&delay), "{delay} s at {moment} s: {bounds:?}");
    }
    assert!(delays.is_sorted() && delays[3] > 2.0 * delays[0], "{delays:?}");
}

/// §6.2, Figure 6: 46 % with groups of 4. The others' computation before they need a stopped row grows with the size of
/// panels.
#[test]
fn linpack_gains_with_large_panels() {
    let saved = |panel| {
        let moments = [15, 35, 55, 75, 95, 115, 135, 155].map(|moment| (4, moment));
        let delays = delays(Program::Linpack { panel }, moments);
        1.0 - delays.iter().sum::<f64>() / 8.0 / (32.0 * 180.0 / 140.0)
    };
    let (large, small) = (saved(2048), saved(256));
    assert!((0.35..0.55).contains(&large) && small < 0.15, "{large} {small}");
}

/// A checkpoint that comes too late is none.
#[test]
fn after_the_end_there_is_no_checkpoint() {
    let undisturbed = times(groups(8, 0), 8, None);
    assert_eq!(times(groups(8, 0), 8, Some(1000)), undisturbed);
    assert_eq!((undisturbed.total, undisturbed.individual), (0, 0));
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let base = Run {
        program: groups(5, 0),
        ranks: 32,
        group: 8,
        moment: None,
        costs: Costs {
            latency: 1,
            bandwidth: 1,
            logger: 0,
            point: None,
        },
        storage: Storage {
            bandwidth: 1,
            client: 1,
            image: 1,
        },
    };
    assert!(matches!(run(base), Err(Error::Ranks { .. })));
    for group in [0, 33] {
        let wrong = Run {
            program: groups(8, 0),
            group,
            ..base
        };
        assert_eq!(run(wrong), Err(Error::Group { group, ranks: 32 }));
    }
}
