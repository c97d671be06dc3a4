//! Lives of one stream, as the ledger sees them.

use super::*;

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 % 251) as u8).collect()
}

/// Prints `all` in pieces of `piece` bytes; what came through and the differences.
fn print(taken: &mut Taken, all: &[u8], piece: usize) -> (Vec<u8>, Vec<Difference>) {
    let mut new = Vec::new();
    let mut differs = Vec::new();
    for part in all.chunks(piece) {
        let accepted = taken.accept(part);
        new.extend(accepted.new);
        differs.extend(accepted.difference);
    }
    (new, differs)
}

/// A first life prints `first`; a second prints `second` and ends. Returns the second's new text and, for each
/// difference, whether it was printed anew.
fn lives(first: &str, second: &str, is_replay: bool, piece: usize) -> (String, Vec<bool>) {
    let mut taken = Taken::default();
    assert_eq!(print(&mut taken, first.as_bytes(), piece).0, first.as_bytes());
    taken.restarted(Printed::default(), is_replay);
    let (mut new, mut differs) = print(&mut taken, second.as_bytes(), piece);
    let last = taken.end_life();
    new.extend(last.new);
    differs.extend(last.difference);
    let anew = differs.iter().map(|difference| difference.anew).collect();
    (String::from_utf8(new).unwrap(), anew)
}

const PIECES: [usize; 4] = [1, 3, 7, 100_000];

#[test]
fn every_byte_comes_through_once_wherever_lives_end() {
    let lines: Vec<u8> = (0..17_000).flat_map(|i| format!("{i}\n").into_bytes()).collect();
    for all in [text(40_000), lines] {
        let end = all.len();
        for (first, second) in [
            (0, 0),
            (1, 1),
            (4096, 4096),
            (5000, 3000),
            (16_384, 16_385),
            (end - 7, end - 100),
            (end, end),
        ] {
            for piece in [1000, 65_536] {
                for is_replay in [false, true] {
                    let mut taken = Taken::default();
                    let mut got = Vec::new();
                    for end in [first, second, all.len()] {
                        taken.restarted(Printed::default(), is_replay);
                        let (new, differs) = print(&mut taken, &all[..end], piece);
                        got.extend(new);
                        assert_eq!(differs, []);
                    }
                    assert!(got == all, "{first} {second} {piece}");
                    assert_eq!((taken.behind(), taken.end_life()), (0, Accepted::default()));
                }
            }
        }
    }
}

#[test]
fn other_bytes_are_printed_from_their_line_on() {
    let all: String = (0..18_000).map(|i| format!("the line {i}\n")).collect();
    let lines: Vec<&str> = all.split_inclusive('\n').collect();
    // Beyond the first lines, from the 64 on among which the line is.
    for (line, from) in [(0, 0), (1, 1), (16_383, 16_383), (17_500, 17_472), (17_999, 17_984)] {
        for is_replay in [false, true] {
            let mut other = lines.clone();
            other[line] = "another line\n";
            let mut taken = Taken::default();
            print(&mut taken, all.as_bytes(), 777);
            taken.restarted(Printed::default(), is_replay);
            let (new, differs) = print(&mut taken, other.concat().as_bytes(), 777);
            let offset = lines[..from].concat().len() as u64;
            assert_eq!(differs, [Difference { offset, anew: true }]);
            assert!(new == other[from..].concat().as_bytes(), "{line}");
            // The next life is compared with the last.
            taken.restarted(Printed::default(), is_replay);
            assert_eq!(print(&mut taken, other.concat().as_bytes(), 777), (vec![], vec![]));
            assert_eq!(taken.behind(), 0);
        }
    }
}

#[test]
fn a_life_from_an_image_repeats_only_what_came_after_it() {
    let all = text(20_000);
    for image in [0, 1, 4095, 4096, 5000, 9000] {
        let mut taken = Taken::default();
        taken.accept(&all[..image]);
        let from = taken.printed();
        taken.accept(&all[image..9000]);
        taken.restarted(from, true);
        assert_eq!(taken.behind(), 9000 - image as u64);
        let (new, differs) = print(&mut taken, &all[image..], 1000);
        assert!(new == all[9000..] && differs.is_empty(), "{image}");
    }
}

#[test]
fn lines_after_one_with_a_measured_number_are_whole() {
    let first = b"begin\nstep 1: 0.12 s\nstep 2: 9.9 s\nresult 17\nend\n";
    let second = b"begin\nstep 1: 0.1 s\nstep 2: 10.01 s\nresult 17\nend\n";
    for lives in [[&first[..], second], [second, first]] {
        for end in 0..first.len().min(second.len()) {
            for (piece, is_replay) in PIECES.iter().flat_map(|piece| [(*piece, false), (*piece, true)]) {
                let mut taken = Taken::default();
                let mut got = print(&mut taken, &lives[0][..end], piece).0;
                taken.restarted(Printed::default(), is_replay);
                let (new, differs) = print(&mut taken, lives[1], piece);
                got.extend(new);
                let text = String::from_utf8(got).unwrap();
                let lines: Vec<&str> = text.lines().collect();
                assert_eq!(
                    (lines.len(), lines[0], lines[3], lines[4]),
                    (5, "begin", "result 17", "end"),
                    "{text}"
                );
                assert!(differs.iter().all(|difference| !difference.anew));
                assert_eq!(taken.behind(), 0);
            }
        }
    }
}

#[test]
fn a_line_that_is_shorter_in_the_replay_ends_where_it_ended() {
    let mut taken = Taken::default();
    taken.accept(b"took 10.5");
    taken.restarted(Printed::default(), true);
    let accepted = taken.accept(b"took 9.");
    assert_eq!(accepted.difference, Some(Difference { offset: 0, anew: false }));
    assert_eq!((accepted.new, taken.behind()), (vec![], 0));
    assert_eq!(taken.accept(b" s\nend").new, b" s\nend");
    let from = taken.printed();
    assert_eq!(taken.accept(b" of it\n").new, b" of it\n");
    taken.restarted(from, true);
    assert_eq!(taken.accept(b" of it\nnew").new, b"new");
}

#[test]
fn another_way_is_printed_whole() {
    let first = "a new run\nstep 1: value 4f\nstep 2: value 88\nstep 3: value 09\n";
    let second = "from step 2\nstep 3: value 09\nresult ff\n";
    for (piece, is_replay) in PIECES.iter().flat_map(|piece| [(*piece, false), (*piece, true)]) {
        assert_eq!(lives(first, second, is_replay, piece), (second.to_string(), vec![true]));
        let torn = &first[..first.len() - 4];
        let whole = format!("\n{second}");
        assert_eq!(lives(torn, second, is_replay, piece), (whole, vec![true]));
    }
}

#[test]
fn other_whole_numbers_are_another_way_for_those_who_return_together() {
    let first: String = (0..20)
        .map(|step| format!("step {step}: energy {}.5\n", step * 3))
        .collect();
    let second: String = (10..15)
        .map(|step| format!("step {step}: energy {}.5\n", step * 3))
        .collect();
    for piece in PIECES {
        assert_eq!(lives(&first, &second, false, piece), (second.clone(), vec![true]));
        // Messages were the same, so only the missing end shows it.
        assert_eq!(lives(&first, &second, true, piece), (second.clone(), vec![true]));
        let pids = ("pid 17\nresult\n", "pid 18\nresult\nend\n");
        assert_eq!(lives(pids.0, pids.1, true, piece), ("end\n".to_string(), vec![false]));
        assert_eq!(lives(pids.0, pids.1, false, piece), (pids.1.to_string(), vec![true]));
    }
}

#[test]
fn numbers_alone_do_not_show_that_a_life_goes_the_same_way() {
    let rows = |from: usize, to: usize| -> String { (from..to).map(|i| format!("{i}.0 {i}.25\n")).collect() };
    let (first, second) = (format!("t x\n{}", rows(0, 20)), format!("t x\n{}", rows(10, 40)));
    for piece in PIECES {
        assert_eq!(lives(&first, &second, false, piece), (rows(10, 40), vec![true]));
        assert_eq!(lives(&first, &second, true, piece), (rows(30, 40), vec![false]));
        // Between lines that do, and no more of them than before.
        let timed = |rounds: usize, time: f64| -> String {
            (0..rounds).map(|i| format!("round {i}\ntook {time} s\n")).collect()
        };
        let (new, anew) = lives(&timed(5, 0.25), &timed(6, 0.375), false, piece);
        assert_eq!((new.as_str(), anew), ("round 5\ntook 0.375 s\n", vec![false]));
    }
}

#[test]
fn what_is_held_back_is_printed_by_the_life_that_goes_on_from_an_image() {
    let first = "begin\n1.5 of it\n2.5 of it\nend\n";
    let second = "begin\n3.5 of it\n4.5 of it\n";
    for at in 0..=second.len() {
        let mut taken = Taken::default();
        taken.accept(first.as_bytes());
        taken.restarted(Printed::default(), false);
        assert_eq!(taken.accept(&second.as_bytes()[..at]).new, b"");
        let image = taken.printed();
        let image: Printed = serde_json::from_str(&serde_json::to_string(&image).unwrap()).unwrap();
        taken.accept(&second.as_bytes()[at..]);
        taken.restarted(image, false);
        let mut new = taken.accept(&second.as_bytes()[at..]).new;
        new.extend(taken.end_life().new);
        assert_eq!(new, b"3.5 of it\n4.5 of it\n", "{at}");
    }
}

#[test]
fn a_line_of_two_lives_is_that_of_the_last_one() {
    let mut taken = Taken::default();
    taken.accept(b"round 1\ntook 0.12345");
    taken.restarted(Printed::default(), false);
    taken.accept(b"round 1\ntook 0.5");
    let image = taken.printed();
    assert_eq!(taken.accept(b" s\n").new, b"\n");
    for _ in 0..2 {
        taken.restarted(image.clone(), false);
        assert_eq!(print(&mut taken, b" s\n", 3), (vec![], vec![]));
        assert_eq!(taken.behind(), 0);
    }
    taken.restarted(Printed::default(), false);
    assert_eq!(print(&mut taken, b"round 1\ntook 9.75 s\nround 2\n", 3).0, b"round 2\n");
}

#[test]
fn what_an_image_had_printed_of_a_line_is_not_printed_again() {
    let mut taken = Taken::default();
    taken.accept(b"begin\nstep ");
    let image = taken.printed();
    taken.accept(b"one\nstep two\n");
    for _ in 0..2 {
        taken.restarted(image.clone(), false);
        let new = taken.accept(b"three\nend\n").new;
        assert!(new == b"three\nend\n" || new.is_empty());
    }
    assert_eq!((taken.behind(), taken.bytes), (0, 21));
}

#[test]
fn little_is_held_back() {
    let rows = |digit: char| -> Vec<u8> { format!("0.{digit}\n").repeat(70_000).into_bytes() };
    for is_replay in [false, true] {
        let mut taken = Taken::default();
        print(&mut taken, &rows('1'), 1000);
        taken.restarted(Printed::default(), is_replay);
        let (new, differs) = print(&mut taken, &rows('2'), 1000);
        assert_eq!(
            differs,
            [Difference {
                offset: 0,
                anew: !is_replay
            }]
        );
        assert!(if is_replay { new.is_empty() } else { new == rows('2') });
        assert!(taken.units.len() < 18_000);
    }
}

#[test]
fn what_is_missing_is_counted_and_can_be_forgiven() {
    let mut taken = Taken::default();
    taken.accept(&text(100));
    taken.restarted(Printed::default(), true);
    taken.accept(&text(40));
    assert_eq!(taken.behind(), 60);
    taken.forgive();
    assert_eq!((taken.behind(), taken.missing()), (0, 60));
    // It may have been late only.
    assert_eq!(taken.accept(&text(100)[40..]).new, b"");
    assert_eq!(taken.accept(b"new").new, b"new");
    assert_eq!(taken.bytes, 103);
}
