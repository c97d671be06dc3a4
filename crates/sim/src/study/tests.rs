use super::*;

const COSTS: Costs = Costs {
    latency: 50_000,
    bandwidth: 11_500_000,
    logger: 30_000,
    point: None,
};

fn study(kernel: Kernel, ranks: Rank, reduction: Reduction, event_loggers: usize) -> Measured {
    let study = Study {
        kernel,
        ranks,
        reduction: Some(reduction),
        event_loggers,
        messages: 2000,
        costs: COSTS,
    };
    run(study, 1024).unwrap()
}

#[test]
fn the_same_study_gives_the_same_figures() {
    for kernel in [Kernel::Cg, Kernel::Lu, Kernel::Bt, Kernel::Ft] {
        let [one, other] = [0, 1].map(|_| study(kernel, 16, Reduction::Manetho, 1));
        assert_eq!(one.piggyback_bytes, other.piggyback_bytes, "{kernel:?}");
        assert_eq!(one.time, other.time, "{kernel:?}");
        assert_eq!(one.collection.bytes, other.collection.bytes, "{kernel:?}");
    }
}

/// Bouteiller 2005, §V.C: without an event logger every message carries the delivery before it, and nothing else.
#[test]
fn a_ping_pong_carries_one_event() {
    for reduction in [Reduction::Vcausal, Reduction::Manetho, Reduction::LogOn] {
        let measured = study(Kernel::PingPong, 2, reduction, 0);
        assert!(measured.events.abs_diff(measured.messages) <= 1, "{measured:?}");
        assert!(measured.empty <= 1);
    }
}

#[test]
fn a_graph_carries_no_more_than_sequences_and_a_logger_less_than_none() {
    for kernel in [Kernel::Cg, Kernel::Lu, Kernel::Bt, Kernel::Ft] {
        let sequences = study(kernel, 16, Reduction::Vcausal, 0);
        let graph = study(kernel, 16, Reduction::Manetho, 0);
        let logged = study(kernel, 16, Reduction::Vcausal, 1);
        assert!(graph.events <= sequences.events, "{kernel:?}");
        assert!(logged.events < sequences.events, "{kernel:?}");
        assert!(logged.most_kept < sequences.most_kept, "{kernel:?}");
    }
}

/// Deliveries that the logger lacks some rank tells: the answers have at least what a record needs.
#[test]
fn what_is_collected_is_everything_that_is_kept() {
    let without = study(Kernel::Cg, 8, Reduction::Vcausal, 0);
    let with = study(Kernel::Cg, 8, Reduction::Vcausal, 1);
    assert!(without.collection.events >= without.messages * 7 / 8);
    assert!(with.collection.bytes < without.collection.bytes);
    assert!(with.collection.events >= with.messages / 8 / 2);
}

#[test]
fn numbers_of_ranks_and_memory_are_checked() {
    let study = |kernel, ranks, messages| Study {
        kernel,
        ranks,
        reduction: Some(Reduction::LogOn),
        event_loggers: 0,
        messages,
        costs: COSTS,
    };
    for (kernel, ranks) in [(Kernel::Bt, 8), (Kernel::Cg, 12), (Kernel::Ft, 1), (Kernel::Lu, 5000)] {
        let error = run(study(kernel, ranks, 10), 1).unwrap_err();
        assert!(matches!(error, Error::Ranks { .. }), "{error}");
    }
    for (kernel, ranks) in [(Kernel::Ft, 4096), (Kernel::Lu, 16)] {
        let error = run(study(kernel, ranks, 100_000), 8).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }), "{error}");
    }
}
