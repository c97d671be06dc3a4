use super::*;
use crate::random::splitmix;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        (splitmix(&mut self.0) % end as u64) as usize
    }
}

const SCHEMES: [Scheme; 2] = [Scheme::Partner, Scheme::Parity];

/// Right after a checkpoint.
fn all_have(layout: Layout) -> Vec<Has> {
    let has = |place| Has {
        origin: Some(place),
        place: Some(place),
        whole: layout.copied(place).chain([place]).collect(),
    };
    (0..layout.places).map(has).collect()
}

#[test]
fn partners_are_others_and_know_whose_copies_they_have() {
    for places in 1..40 {
        for losses in 0..6 {
            let layout = Layout::new(places, Scheme::Partner, losses);
            assert_eq!(layout.losses, losses.min(places - 1));
            for place in 0..places {
                let partners: BTreeSet<usize> = layout.partners(place).collect();
                assert_eq!(partners.len(), layout.losses, "{layout:?}");
                assert!(!partners.contains(&place));
                assert!(
                    partners
                        .iter()
                        .all(|partner| layout.copied(*partner).any(|of| of == place))
                );
            }
        }
    }
    assert_eq!(Layout::new(8, Scheme::Partner, 1).partners(1).collect::<Vec<_>>(), [5]);
}

#[test]
fn each_stripe_has_each_member_once() {
    for places in 1..60 {
        for losses in 0..5 {
            let layout = Layout::new(places, Scheme::Parity, losses);
            let set = layout.set(places / 2);
            let (members, shards) = (set.len(), layout.shards(set.len()));
            assert!(set.contains(&(places / 2)) && shards >= 1 && members <= DATA_OF_A_SET + losses);
            for stripe in 0..members {
                let of_shards = (0..shards).map(|shard| layout.member_of_shard(members, stripe, shard));
                let of_pieces = (0..layout.losses).map(|piece| layout.member_of_piece(members, stripe, piece));
                assert_eq!(of_shards.chain(of_pieces).collect::<BTreeSet<_>>().len(), members);
                for shard in 0..shards {
                    let member = layout.member_of_shard(members, stripe, shard);
                    assert_eq!(layout.stripe(members, member, shard), stripe);
                }
            }
        }
    }
}

#[test]
fn the_rank_of_a_place_keeps_it_or_takes_it() {
    let layout = Layout::new(4, Scheme::Partner, 1);
    let all = all_have(layout);
    let plan_of = |has: &[Has]| plan(layout, has).unwrap();
    // Nobody is lost.
    assert_eq!(plan_of(&all).ways, [const { Way::IsThere }; 4]);
    // Place 1 is lost, and has a new rank.
    let replaced = [all[0].clone(), Has::default(), all[2].clone(), all[3].clone()];
    assert_eq!(plan_of(&replaced).ways[1], Way::From(3));
    assert_eq!(plan_of(&replaced).keepers, [0, 1, 2, 3]);
    // It is lost, and nobody is new: its partner, now rank 2, has the data.
    let fewer = [all[0].clone(), all[2].clone(), all[3].clone()];
    assert_eq!(plan_of(&fewer).keepers, [0, 2, 1, 2]);
    assert_eq!(plan_of(&fewer).places, [Some(0), Some(2), Some(3)]);
    // Its partner is lost with it.
    assert_eq!(plan(layout, &[all[0].clone(), all[2].clone()]), None);
    assert_eq!(plan(layout, &[]), None);
}

/// Makes a checkpoint whole by a plan, and checks that each step has what it needs.
fn carry_out(layout: Layout, all: &mut [Has], plan: &Plan) {
    let before = all.to_vec();
    for (place, (keeper, way)) in plan.keepers.iter().zip(&plan.ways).enumerate() {
        match way {
            Way::IsThere => assert!(before[*keeper].whole.contains(&place)),
            Way::From(rank) => assert!(before[*rank].whole.contains(&place)),
            Way::Decoded(shards) => {
                let set = layout.set(place);
                assert_eq!(shards.len(), layout.shards(set.len()));
                for parts in shards {
                    assert_eq!(parts.iter().collect::<BTreeSet<_>>().len(), shards.len());
                    for (part, rank) in parts {
                        match part {
                            Part::Shard { place: of, .. } => assert!(*of != place && before[*rank].whole.contains(of)),
                            Part::Piece { place: of, .. } => assert_eq!(before[*rank].origin, Some(*of)),
                        }
                    }
                }
            }
        }
        all[*keeper].whole.insert(place);
    }
    for (has, place) in all.iter_mut().zip(&plan.places) {
        has.place = *place;
    }
}

#[test]
fn what_is_covered_is_made_whole() {
    let mut random = Random(3);
    for _ in 0..4000 {
        let losses = random.below(4);
        let layout = Layout::new(1 + random.below(30), SCHEMES[random.below(2)], losses);
        let mut all = all_have(layout);
        let mut lost = 0;
        for _ in 0..1 + random.below(3) {
            let mut survivors = Vec::new();
            for has in &all {
                let dies = random.below(8) == 0;
                lost += usize::from(dies);
                match (dies, random.below(2)) {
                    (false, _) => survivors.push(has.clone()),
                    // Another takes its place.
                    (true, 0) => survivors.push(Has::default()),
                    (true, _) => {}
                }
            }
            all = survivors;
            match plan(layout, &all) {
                Some(plan) => carry_out(layout, &mut all, &plan),
                None => {
                    assert!(lost > layout.losses, "{layout:?} covers {lost}");
                    break;
                }
            }
        }
    }
}

#[test]
fn more_than_is_covered_is_lost() {
    for losses in 1..4 {
        let layout = Layout::new(8, Scheme::Parity, losses);
        let fewer = all_have(layout).split_off(losses + 1);
        assert_eq!(plan(layout, &fewer), None);
        assert!(plan(layout, &all_have(layout).split_off(losses)).is_some());
    }
}

/// Checkpoints break at any moment, and ranks die: those that are left always agree on one that none of them has
/// dropped, and never on one before the last that counted for anybody.
#[test]
fn ranks_agree_on_a_checkpoint_that_all_have() {
    let mut random = Random(5);
    let counts = |id| Kept {
        counts: id,
        newer: None,
        begun: id,
    };
    for _ in 0..3000 {
        let mut ranks = vec![Kept::default(); 2 + random.below(5)];
        let mut counted = 0;
        for _ in 0..12 {
            // They look at what all have, newcomers get it, and all begin the next. Some may not get so far.
            let (newest, number) = (newest(&ranks), next_number(&ranks));
            assert!(newest.map_or(0, |id| id.number) >= counted);
            let is_newcomer = |kept: &Kept| kept.counts.is_none();
            assert!(newest.is_none_or(|id| ranks.iter().all(|kept| is_newcomer(kept) || kept.has(id))));
            let is_broken = random.below(2) == 0;
            let next = Some(Id { number, of: 0 });
            let (all_begin, knows) = (!is_broken || random.below(2) == 0, random.below(3));
            let mut all_have = !is_broken;
            for kept in &mut ranks {
                let gets_so_far = !is_broken || random.below(2) == 0;
                if gets_so_far && (!is_broken || newest.is_some_and(|id| kept.has(id))) {
                    *kept = counts(newest);
                }
                if all_begin {
                    kept.begun = next;
                }
                if gets_so_far && all_begin && (all_have && knows > 0 || random.below(2) == 0) {
                    kept.newer = next;
                } else {
                    all_have = false;
                }
            }
            for kept in ranks.iter_mut().filter(|_| all_have) {
                if random.below(3) < knows {
                    counted = number;
                    *kept = counts(next);
                }
            }
            let before = ranks.len();
            ranks.retain(|_| random.below(6) != 0);
            let last = Id { number: counted, of: 0 };
            if !ranks.iter().any(|kept| counted == 0 || kept.has(last)) {
                break;
            }
            if random.below(2) == 0 {
                ranks.resize(before, Kept::default());
            }
        }
    }
}
