//! Every option of the family against mathematics written down a second time.
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod support;

use serde_json::{Value, json};
use support::oracle;
use support::packing::Form;
use support::samples::{Sample, changed, everything, tiny};
use support::steps::{Sequence, batch, difference, engine, logits, sequence};

const ALL_FORMS: [Form; 5] = [Form::F32, Form::Bf16, Form::Int8, Form::Int4, Form::Int4Min];

fn error(json: Value, forms: &[Form]) -> f64 {
    let sample = Sample::new(json, forms);
    let sequence = sequence(1, 13, -1);
    let want = oracle::logits(&sample, &sequence.tokens);
    difference(&logits(&mut engine(&sample, &[], 1, 1), &[sequence]), want.into_iter().flatten())
}

#[test]
fn each_option_alone_gives_the_logits_of_the_oracle() {
    let options = [
        json!({}),
        json!({"tied_embeddings": false}),
        json!({"activation": "gelu_tanh"}),
        json!({"embedding_scale": 8.0}),
        json!({"attention_scale": 0.7}),
        json!({"attention_softcap": 1.0}),
        json!({"logit_softcap": 2.0}),
        json!({"qkv_bias": true}),
        json!({"output_bias": true}),
        json!({"mlp_bias": true}),
        json!({"qk_norm": true}),
        json!({"post_norms": true}),
        json!({"attention": {"full": {}}}),
        json!({"attention": {"full": {"window": 1, "rope": {"theta": 10.0, "rotary_dim": 6}}}}),
        json!({"attention": {"full": {"window": 5}}}),
    ];
    let base = Sample::new(tiny(), &[Form::F32]);
    let base = oracle::logits(&base, &sequence(1, 13, -1).tokens);
    for option in options {
        let error = error(changed(option.clone()), &[Form::F32]);
        assert!(error < 1e-5, "{option}: {error}");
        // An option that the oracle overlooks as well would prove nothing.
        let other = oracle::logits(&Sample::new(changed(option.clone()), &[Form::F32]), &sequence(1, 13, -1).tokens);
        assert!(option == json!({}) || other != base, "{option} changes nothing");
    }
}

#[test]
fn all_options_and_all_forms_at_once() {
    assert!(error(everything(), &[Form::F32]) < 1e-5);
    assert!(error(everything(), &ALL_FORMS) < 1e-5);
}

#[test]
fn odd_sizes() {
    let odd = json!({"hidden_size": 21, "intermediate_size": 35, "query_heads": 3, "kv_heads": 1, "head_dim": 7,
                     "vocab_size": 51, "attention": {"full": {"rope": {"theta": 100.0, "rotary_dim": 6}}}});
    assert!(error(changed(odd), &[Form::F32, Form::Bf16]) < 1e-5);
}

#[test]
fn a_window_hides_what_lies_before_it() {
    // By hand: with one layer and a window of 3, the last position sees only the last three tokens.
    let windowed = changed(json!({"layer_count": 1, "attention": {"full": {"window": 3}}}));
    let mut engine = engine(&Sample::new(windowed, &[Form::F32]), &[], 1, 1);
    let whole = Sequence { tokens: vec![1, 2, 3, 4, 5, 6], new: 6, adapter: -1 };
    let tail = Sequence { tokens: vec![4, 5, 6], new: 3, adapter: -1 };
    let other = Sequence { tokens: vec![1, 2, 9, 4, 5, 6], new: 6, adapter: -1 };
    let seen = Sequence { tokens: vec![1, 2, 3, 9, 5, 6], new: 6, adapter: -1 };
    let mut last = |s: &Sequence| logits(&mut engine, std::slice::from_ref(s)).split_off((s.tokens.len() - 1) * 50);
    let want = last(&whole);
    assert_eq!(last(&tail), want);
    assert_eq!(last(&other), want);
    assert_ne!(last(&seen), want);
}

#[test]
fn decoding_and_batching_change_no_bit() {
    let sample = Sample::new(everything(), &ALL_FORMS);
    let mut engine = engine(&sample, &[], 1, 1);
    let [a, b] = [sequence(1, 9, -1), sequence(2, 6, -1)];
    let alone = [&a, &b].map(|s| logits(&mut engine, std::slice::from_ref(s)));
    assert_eq!(logits(&mut engine, &[a.clone(), b.clone()]), alone.concat());
    let mut stepped = Vec::new();
    for end in [4, 5, 9] {
        let new = if end == 5 { 1 } else { 4 };
        stepped.extend(logits(&mut engine, &[Sequence { tokens: a.tokens[..end].to_vec(), new, adapter: -1 }]));
    }
    assert_eq!(stepped, alone[0]);
}

#[test]
fn returned_logits_are_capped_and_sampled_from() {
    let sample = Sample::new(changed(json!({"logit_softcap": 0.5})), &[Form::F32]);
    let outcome = engine(&sample, &[], 1, 1).forward(&batch(&[sequence(3, 5, -1)])).unwrap();
    let logits = outcome.logits.unwrap();
    assert!(logits.iter().all(|l| l.abs() < 0.5));
    let last = &logits[4 * 50..];
    assert!(last.iter().all(|l| *l <= last[outcome.tokens[0] as usize]));
}
