//! Adapters: equal to merged weights, mixed within a batch, invisible to rows without, and refused where they misfit.
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod support;

use support::packing::{Form, Matrix, Stored, image};
use support::samples::{Adapter, Sample, everything, tiny};
use support::steps::{Sequence, batch, difference, engine, logits, sequence};
use tie_bones_model::model::Model;
use tie_bones_model::table::Part;

fn refused(sample: &Sample, adapters: &[(&str, Vec<Stored>)]) -> String {
    let base = image(&sample.tensors());
    let images: Vec<_> = adapters.iter().map(|(name, tensors)| (*name, image(tensors))).collect();
    let named: Vec<_> = images.iter().map(|(name, image)| (*name, image.as_slice())).collect();
    Model::resolve(sample.description(), &[&base], &named).unwrap_err().to_string()
}

fn pair(stem: &str, a: (usize, usize), b: (usize, usize), form: Form) -> Vec<Stored> {
    let [a, b] = [("lora_a", a), ("lora_b", b)].map(|(side, shape)| {
        Matrix::random(&format!("{stem}.{side}"), form, shape, 1.0, &mut support::packing::Rng(1)).stored
    });
    [a, b].concat()
}

#[test]
fn adapters_that_do_not_fit_are_refused_by_name() {
    let sample = Sample::new(tiny(), &[Form::F32]);
    let good = || pair("layers.0.attn.q", (32, 64), (64, 32), Form::F32);
    let one = |tensors: Vec<Stored>| refused(&sample, &[("style", tensors)]);
    assert!(refused(&sample, &[("Bad", good())]).contains("adapters: Bad must be named"));
    assert!(refused(&sample, &[("", good())]).contains("must be named"));
    assert!(refused(&sample, &[("a", good()), ("a", good())]).contains("adapters: a occurs twice"));
    let names: Vec<String> = (0..65).map(|i| format!("a{i}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), good())).collect();
    assert!(refused(&sample, &many).contains("adapters: are 65, limit 64"));
    let lone = |keep: usize| one(good().into_iter().skip(keep).take(1).collect());
    assert_eq!(lone(0), "adapter style: weights: tensor layers.0.attn.q.lora_b is missing");
    assert!(lone(1).contains("layers.0.attn.q.lora_a is missing"));
    let rank = |rank| one(pair("layers.0.attn.q", (rank, 64), (64, rank), Form::F32));
    assert!(rank(16).contains("lora_a is of rank 16, must be of a rank from 32 to 512 in steps of 32"));
    assert!(rank(48).contains("of rank 48"));
    assert!(rank(544).contains("of rank 544"));
    let other = one(pair("layers.0.attn.q", (32, 64), (64, 64), Form::F32));
    assert!(other.contains("lora_b is F32 [4, 64, 16], must be F32 [4, 32, 16]"), "{other}");
    assert!(one(pair("layers.0.attn.q", (32, 32), (64, 32), Form::F32)).contains("lora_a is F32 [2, 32, 16]"));
    assert!(one(pair("layers.4.attn.q", (32, 64), (64, 32), Form::F32)).contains("not part of the described model"));
    assert!(one(pair("embed", (32, 64), (64, 32), Form::F32)).contains("not part of the described model"));
    assert!(one(pair("layers.0.attn.q", (32, 64), (64, 32), Form::Int8)).contains("not part of the described model"));
}

#[test]
fn batches_that_name_no_adapter_are_refused_by_row() {
    let sample = Sample::new(tiny(), &[Form::F32]);
    let mut engine = engine(&sample, &[sample.adapter("a", 1, Form::F32, &[Part::Q])], 1, 1);
    for adapter in [1, -2, i32::MAX] {
        let batch = batch(&[sequence(1, 2, 0), sequence(2, 2, adapter)]);
        let refusal = engine.forward(&batch).unwrap_err();
        assert!(refusal.is_callers_fault());
        assert_eq!(refusal.to_string(), format!("batch row 1: adapters is {adapter}, must be -1 for none or below 1"));
    }
    let mut short = batch(&[sequence(1, 2, 0), sequence(2, 2, 0)]);
    short.adapters = Some(vec![0]);
    assert!(engine.forward(&short).unwrap_err().to_string().contains("adapters has 1 entries, must have 2"));
}

#[test]
fn an_adapter_equals_merged_weights() {
    let parts: [&[Part]; 4] = [&Part::ALL, &[Part::V, Part::Down], &[Part::O], &[Part::Up]];
    for json in [tiny(), everything()] {
        let sample = Sample::new(json, &[Form::F32]);
        for (seed, parts) in parts.into_iter().enumerate() {
            let adapter = sample.adapter("a", seed as u64, [Form::F32, Form::Bf16][seed % 2], parts);
            let merged = logits(&mut engine(&sample.merged(&adapter), &[], 1, 1), &[sequence(1, 9, -1)]);
            let plain = logits(&mut engine(&sample, &[], 1, 1), &[sequence(1, 9, -1)]);
            let got = logits(&mut engine(&sample, &[adapter], 1, 1), &[sequence(1, 9, 0)]);
            let error = difference(&got, merged.iter().map(|l| f64::from(*l)));
            assert!(error < 1e-5, "{parts:?}: {error}");
            assert!(difference(&got, plain.iter().map(|l| f64::from(*l))) > 1e-2, "the adapter changes nothing");
        }
    }
}

#[test]
fn adapters_mix_within_a_batch_and_no_row_sees_another() {
    let sample = Sample::new(everything(), &[Form::F32, Form::Int8]);
    let adapters: Vec<Adapter> =
        vec![sample.adapter("a", 1, Form::F32, &Part::ALL), sample.adapter("b", 2, Form::Bf16, &[Part::K, Part::Gate])];
    for (tensor, pipeline) in [(1, 1), (2, 2)] {
        let mut engine = engine(&sample, &adapters, tensor, pipeline);
        let sequences: Vec<Sequence> =
            [-1, 0, 0, 1].iter().enumerate().map(|(i, &adapter)| sequence(i as u64, 3 + i, adapter)).collect();
        let alone: Vec<Vec<f32>> = sequences.iter().map(|s| logits(&mut engine, std::slice::from_ref(s))).collect();
        assert_eq!(logits(&mut engine, &sequences), alone.concat());
        let mut backwards = sequences.clone();
        backwards.reverse();
        let want: Vec<f32> = alone.iter().rev().flatten().copied().collect();
        assert_eq!(logits(&mut engine, &backwards), want);
    }
    // Neither does a row without adapter see that the model has some.
    let without = logits(&mut engine(&sample, &[], 1, 1), &[sequence(0, 3, -1)]);
    assert_eq!(
        logits(&mut engine(&sample, &adapters, 1, 1), &[sequence(0, 3, -1), sequence(1, 4, 0)])[..3 * 50],
        without
    );
}
