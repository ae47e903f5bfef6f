//! A step in two halves is the step: the mask may come when the rows have been advanced.
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod support;

use support::packing::Form;
use support::samples::{Sample, tiny};
use support::steps::{batch, engine, sequence};
use tie_bones_model::batch::{Batch, WantLogits};

const WORDS: usize = 2;

fn sample() -> Sample {
    Sample::new(tiny(), &[Form::F32])
}

fn steps() -> Batch {
    batch(&[sequence(1, 6, -1), sequence(2, 3, -1)])
}

#[test]
fn a_half_out_of_its_place_is_refused() {
    let mut engine = engine(&sample(), &[], 1, 1);
    assert!(engine.sample(None).unwrap_err().to_string().contains("sample follows a step that was advanced"));
    let masked = Batch { allowed_mask: Some(vec![!0; 2 * WORDS]), ..steps() };
    let refusal = engine.advance(&masked).unwrap_err();
    assert!(refusal.is_callers_fault());
    assert!(refusal.to_string().contains("allowed_mask belongs to the call that samples"));
    engine.advance(&steps()).unwrap();
    assert!(engine.sample(Some(&[0; 3])).unwrap_err().to_string().contains("allowed_mask must have 4 words"));
    assert!(engine.sample(None).unwrap_err().is_callers_fault(), "once");
}

#[test]
fn what_failed_to_advance_is_not_sampled() {
    let mut engine = engine(&sample(), &[], 1, 1);
    engine.advance(&steps()).unwrap();
    engine.advance(&Batch::default()).unwrap_err();
    assert!(engine.sample(None).unwrap_err().is_callers_fault());
}

#[test]
fn two_halves_give_what_the_whole_gives_on_every_crew() {
    let mask = [0xff00, 0, 0xff_0000, 0];
    let masked = Batch { allowed_mask: Some(mask.to_vec()), ..steps() };
    let want = engine(&sample(), &[], 1, 1).forward(&masked).unwrap();
    assert!((8..16).contains(&want.tokens[0]) && (16..24).contains(&want.tokens[1]));
    for (tensor, pipeline) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
        let mut halved = engine(&sample(), &[], tensor, pipeline);
        halved.advance(&steps()).unwrap();
        assert_eq!(halved.sample(Some(&mask)).unwrap().tokens, want.tokens);
    }
}

#[test]
fn a_step_that_samples_nothing_has_two_halves_too() {
    let mut engine = engine(&sample(), &[], 1, 2);
    engine.advance(&Batch { sample: vec![false; 2], want_logits: WantLogits::No, ..steps() }).unwrap();
    assert_eq!(engine.sample(None).unwrap().tokens, [-1, -1]);
}
