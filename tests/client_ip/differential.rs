//! Random requests. For each of them, the crate returns the same as the model, and mutants of the model return
//! something else for some of them.

use std::collections::{BTreeSet, HashMap};

use crate::model::{Heard, How, Missing, Model, Mutant, Setup};
use crate::scale::scaled;
use crate::seed::Random;
use crate::{adapter, generators};

/// The number of requests for each setup.
const EACH: u64 = 100;

/// Returns the setup for a seed, and its requests.
fn cases(seed: u64) -> (Setup, Vec<Heard>) {
    let mut random = Random::new(seed);
    let setup = generators::setup(&mut random);
    let heard = (0..EACH).map(|_| generators::heard(&mut random, &setup.source)).collect();
    (setup, heard)
}

#[test]
fn requests_are_answered_as_by_the_model() {
    let (mut addresses, mut errors): (HashMap<How, u64>, HashMap<Missing, u64>) = Default::default();
    let mut said = BTreeSet::new();
    let requests = scaled(1_000_000);
    for seed in 0..requests / EACH {
        let (setup, all) = cases(seed);
        let model = Model::new(&setup, Mutant::Faithful).unwrap();
        let client = adapter::peer_said(adapter::client_ip(&setup).unwrap());
        for heard in all {
            let found = client.resolve(&adapter::request(&heard).unwrap());
            let expected = model.answer(&heard);
            assert_eq!(
                found.as_ref().ok(),
                expected.as_ref().ok().map(|(ip, _)| ip),
                "seed {seed}, {setup:?}\n{heard:?}\nby the model: {expected:?}\nfound: {found:?}"
            );
            if let (Err(error), Err(missing)) = (&found, &expected) {
                let by_client = matches!(missing, Missing::Several | Missing::TooFew | Missing::Broken);
                assert_eq!(error.is_invalid(), by_client, "{missing:?}: {error}");
            }
            match expected {
                Ok((_, how)) => *addresses.entry(how).or_default() += 1,
                Err(missing) => *errors.entry(missing).or_default() += 1,
            }
            if let Err(error) = found {
                said.insert(error.to_string());
            }
        }
    }
    println!("{addresses:?}, {errors:?}, {said:#?}");
    let share = |count: u64| count * 100 / requests;
    for how in [How::Peer, How::Decisive, How::AllTrusted] {
        assert!(share(addresses[&how]) >= 10, "{how:?}: {addresses:?}");
    }
    assert!(share(addresses[&How::TrustedPeer]) >= 1, "{addresses:?}");
    assert!(share(errors[&Missing::Broken]) >= 10, "{errors:?}");
    assert!(share(errors.values().sum::<u64>() - errors[&Missing::Broken]) >= 10, "{errors:?}");
    for missing in [
        Missing::NoPeer,
        Missing::UnixPeer,
        Missing::NoHeader,
        Missing::Several,
        Missing::TooFew,
        Missing::Broken,
    ] {
        assert!(errors[&missing] >= requests / 1_000, "{missing:?}: {errors:?}");
    }
    // The error is one of a few fixed sentences, so it contains nothing of the request.
    assert!(said.len() <= 20, "{said:#?}");
}

#[test]
fn each_mutant_is_detected_within_a_hundred_thousand_requests() {
    for mutant in Mutant::BROKEN {
        let seen = (0..100_000 / EACH).find_map(|seed| {
            let (setup, all) = cases(seed);
            let model = Model::new(&setup, mutant).unwrap();
            let client = adapter::peer_said(adapter::client_ip(&setup).unwrap());
            let differs = |heard: &Heard| {
                let found = client.resolve(&adapter::request(heard).unwrap());
                found.ok() != model.answer(heard).ok().map(|(ip, _)| ip)
            };
            all.iter().position(differs).map(|place| seed * EACH + place as u64)
        });
        println!("{mutant:?}: seen at request {}", seen.unwrap_or_else(|| panic!("not seen: {mutant:?}")));
    }
}
