use super::*;

const SECOND: u64 = 1_000_000_000;
const LOCAL: Protocol = Protocol::ChandyLamport { local_copies: true };
const STORE: Protocol = Protocol::ChandyLamport { local_copies: false };
const ALL: [Protocol; 3] = [Protocol::Pessimistic, LOCAL, STORE];

/// Nine ranks of bt for 120 s, with images of which the server takes one in a second.
fn small(protocol: Protocol, interval: Option<u64>, seed: u64) -> Run {
    Run {
        protocol,
        kernel: Kernel::Bt,
        ranks: 9,
        rounds: 500,
        interval: interval.map(|seconds| seconds * SECOND),
        seed,
        limit: 1200 * SECOND,
        costs: Costs {
            latency: 60_000,
            bandwidth: 11_500_000,
            logger: 10_000,
            point: None,
        },
        storage: Storage {
            bandwidth: 10_000_000,
            client: 10_000_000,
            image: 10_000_000,
        },
        disk: 40_000_000,
        pause: SECOND,
    }
}

#[test]
fn without_faults_nobody_loses_more_than_the_round_trips() {
    let [logging, local, store] = ALL.map(|protocol| run(small(protocol, None, 1)).unwrap());
    assert_eq!(local, store);
    assert!(local.time.unwrap() > 100 * SECOND, "{local:?}");
    let slower = logging.time.unwrap() as f64 / local.time.unwrap() as f64;
    assert!((1.0..1.05).contains(&slower), "{slower}");
}

#[test]
fn all_messages_are_taken_once_whenever_faults_come() {
    for seed in 0..4 {
        for protocol in ALL {
            for interval in [32, 41, 60] {
                let outcome = run(small(protocol, Some(interval), seed)).unwrap();
                assert_eq!(outcome, run(small(protocol, Some(interval), seed)).unwrap());
                assert!(
                    outcome.faults > 1 && outcome.time.is_some(),
                    "{protocol:?} {interval} {seed} {outcome:?}"
                );
            }
        }
    }
}

/// A wave is in the store 10 s after the end of the last return. A return takes 1 s, or 9 s where all read the server.
#[test]
fn local_copies_move_the_rate_at_which_waves_stop_and_logging_goes_on() {
    let ends = |protocol, interval| run(small(protocol, Some(interval), 5)).unwrap().time.is_some();
    assert_eq!(ALL.map(|protocol| ends(protocol, 32)), [true, true, true]);
    assert_eq!(ALL.map(|protocol| ends(protocol, 22)), [true, true, false]);
    assert_eq!(ALL.map(|protocol| ends(protocol, 8)), [true, false, false]);
}

#[test]
fn numbers_of_ranks_that_do_not_fit_are_refused() {
    let run = run(Run {
        ranks: 10,
        ..small(LOCAL, None, 1)
    });
    assert_eq!(
        run.unwrap_err().to_string(),
        "bt does not run on 10 ranks: square numbers, 4 to 4096"
    );
}
