//! A job whose ranks have images alone has a wave when it is suspended.

use super::*;

const PROTOCOLS: [Protocol; 2] = [Protocol::Pessimistic, Protocol::Causal];

/// A job of two ranks that each have image 1 in a file.
fn with_images(protocol: Protocol) -> Coordinator {
    let mut job = launched(plan(protocol, 2, true));
    for rank in 0..2 {
        image(&mut job, rank, 1);
        after(&mut job, Fact::Written { rank, number: 1 });
    }
    job
}

fn protocol_told(commands: &[Command]) -> Option<Protocol> {
    commands.iter().find_map(|command| match command {
        Command::Protocol { protocol, .. } => Some(*protocol),
        _ => None,
    })
}

#[test]
fn a_suspension_has_a_wave_of_its_own() {
    for protocol in PROTOCOLS {
        let mut job = with_images(protocol);
        let begun = after(&mut job, Fact::WavesToSuspend);
        assert_eq!(protocol_told(&begun), Some(Protocol::Auto));
        assert!(job.has_waves_to_suspend() && job.waves_in_files(0).is_empty());
        wave(&mut job, 2);
        after(&mut job, Fact::Halt);
        let written: Vec<Command> = (0..2)
            .flat_map(|rank| after(&mut job, Fact::Written { rank, number: 2 }))
            .collect();
        assert_eq!(job.waves_in_files(0), [2]);
        // A later run finds the wave, and nothing beside it.
        for rank in 0..2 {
            assert!(written.contains(&Command::Collect { rank, number: 1 }));
        }
        assert!(!written.iter().any(|command| matches!(command, Command::Record { .. })));
    }
}

#[test]
fn when_there_is_no_wave_ranks_have_images_alone_as_before() {
    for protocol in PROTOCOLS {
        let mut job = with_images(protocol);
        after(&mut job, Fact::WavesToSuspend);
        after(&mut job, Fact::Wanted { unit: 0 });
        let back = after(&mut job, Fact::OnlyLogs);
        assert_eq!(protocol_told(&back), Some(protocol));
        assert!(!job.has_waves_to_suspend() && !job.has_waves() && !job.may_begin_again());
        after(&mut job, ended(0, 1));
        let alone = after(&mut job, Fact::Restart { rank: 0 });
        assert_eq!(begins(&alone), [(0, From::Copy(1))]);
        // No waves were given up that could come back.
        assert_eq!(after(&mut job, Fact::WavesBack), []);
    }
}

#[test]
fn a_rank_that_fails_before_the_wave_begins_alone() {
    let mut job = with_images(Protocol::Pessimistic);
    after(&mut job, Fact::WavesToSuspend);
    after(&mut job, ended(1, 1));
    let alone = after(&mut job, Fact::Restart { rank: 1 });
    assert_eq!(begins(&alone), [(1, From::Copy(1))]);
}

#[test]
fn there_is_none_of_ranks_that_were_spawned_nor_where_there_are_waves() {
    let mut job = with_images(Protocol::Pessimistic);
    after(&mut job, spawned(1));
    assert_eq!(after(&mut job, Fact::WavesToSuspend), []);
    for protocol in [Protocol::Auto, Protocol::Hierarchical, Protocol::ChannelMemory] {
        let mut job = launched(plan(protocol, 2, true));
        assert_eq!(after(&mut job, Fact::WavesToSuspend), []);
        assert_eq!(job.protocol(), protocol);
    }
}

#[test]
fn a_resumed_job_begins_from_the_wave_and_goes_on_without() {
    for protocol in PROTOCOLS {
        let former = Former {
            asked: 2,
            begun: true,
            files: vec![2],
            ..Former::default()
        };
        let mut job = Coordinator::resume(plan(protocol, 2, true), vec![former.clone(), former], []);
        let all = after(&mut job, Fact::GoOn { together: true });
        assert_eq!(protocol_told(&all), Some(Protocol::Auto));
        assert!(all.contains(&Command::LogsOfWave {
            number: 2,
            only_files: false
        }));
        assert_eq!(begins(&all), [(0, From::File(2)), (1, From::File(2))]);
        for rank in 0..2 {
            after(&mut job, Fact::Started { rank, life: 1 });
            after(&mut job, Fact::Ready { rank, life: 1 });
        }
        assert!(job.has_waves_to_suspend());
        let alone = after(&mut job, Fact::OnlyLogs);
        assert_eq!(protocol_told(&alone), Some(protocol));
        assert!(!job.has_waves() && !job.has_waves_to_suspend());
        image(&mut job, 0, 3);
    }
}
