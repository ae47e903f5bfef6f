//! Several ranks give what one gives, and what cannot be split is refused.
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

mod support;

use serde_json::{Value, json};
use support::packing::Form;
use support::samples::{Sample, changed, everything, tiny};
use support::steps::{OPTIONS, Sequence, batch, difference, engine, failing, logits, sequence};
use tie_bones_model::exchange::Place;
use tie_bones_model::parallel::shards;
use tie_bones_model::table::Part;

const SPLITS: [(usize, usize); 5] = [(2, 1), (1, 2), (2, 2), (1, 4), (2, 3)];

fn refused(json: Value, tensor: usize, pipeline: usize) -> String {
    let sample = Sample::new(json, &[Form::F32]);
    let refusal = failing(&sample, &[], (tensor, pipeline), |_| None).map(drop).unwrap_err();
    assert!(refusal.is_callers_fault());
    refusal.to_string()
}

#[test]
fn what_cannot_be_split_is_refused_by_field_and_limit() {
    let want = "engine: tensor_parallel is 3, must be 1 to 2, the number of kv_heads";
    assert_eq!(refused(tiny(), 3, 1), want);
    assert!(refused(tiny(), 0, 1).contains("tensor_parallel is 0, must be 1 to 64"));
    assert!(refused(tiny(), 1, 0).contains("pipeline_parallel is 0, must be 1 to 4"));
    assert!(refused(tiny(), 1, 5).contains("pipeline_parallel is 5, must be 1 to 4, the number of layers"));
    let narrow = changed(json!({"intermediate_size": 32}));
    assert!(refused(narrow, 2, 1).contains("must be 1 to 1, the number of blocks of intermediate_size"));
    assert!(refused(changed(json!({"vocab_size": 16})), 2, 1).contains("1 to 1, the number of panels of vocab_size"));
    let odd =
        |dim: usize, query: usize| changed(json!({"head_dim": dim, "query_heads": query, "attention": {"full": {}}}));
    assert!(
        refused(odd(8, 8), 2, 1).contains("is 2: keys of rank 1 would begin at element 8, must begin at a multiple")
    );
    assert!(refused(odd(16, 2), 2, 1).contains("queries of rank 1 would begin at element 16"));
    let deep = changed(json!({"layer_count": 40, "kv_heads": 4, "head_dim": 32}));
    assert!(refused(deep, 2, 33).contains("pipeline_parallel is 33, must be 1 to 32"));
}

#[test]
fn shares_cover_everything_once() {
    let smollm2 = json!({"query_heads": 9, "kv_heads": 3, "head_dim": 64, "intermediate_size": 1536, "layer_count": 30,
                         "hidden_size": 576, "vocab_size": 49152});
    let sample = Sample { json: changed(smollm2), ..Sample::new(tiny(), &[Form::F32]) };
    let shards = shards(&sample.description(), 2, 4).unwrap();
    assert_eq!(shards.iter().map(|s| s.place.rank()).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    assert_eq!((shards[0].kv_heads.clone(), shards[1].kv_heads.clone()), (0..2, 2..3));
    assert_eq!((shards[0].heads.query, shards[1].heads.query), (6, 3));
    assert_eq!((shards[0].columns.clone(), shards[1].columns.clone()), (0..768, 768..1536));
    assert_eq!((shards[0].vocab.clone(), shards[1].vocab.clone()), (0..24576, 24576..49152));
    let layers: Vec<_> = shards.iter().step_by(2).map(|s| s.layers.clone()).collect();
    assert_eq!(layers, [0..8, 8..16, 16..23, 23..30]);
    let sampler: Vec<Place> = shards.iter().map(|s| s.place).filter(Place::is_sampler).collect();
    assert_eq!(sampler.iter().map(Place::rank).collect::<Vec<_>>(), [6]);
}

#[test]
fn ranks_give_the_logits_and_the_tokens_of_one() {
    let uneven = json!({"query_heads": 9, "kv_heads": 3, "intermediate_size": 72});
    for json in [tiny(), everything(), changed(uneven)] {
        let forms = if json["intermediate_size"] == 72 {
            vec![Form::F32, Form::Bf16]
        } else {
            vec![Form::F32, Form::Int8, Form::Int4]
        };
        let sample = Sample::new(json, &forms);
        let adapters = [sample.adapter("a", 5, Form::Bf16, &Part::ALL)];
        let sequences = [sequence(1, 9, -1), sequence(2, 6, 0), sequence(3, 1, -1)];
        let want = engine(&sample, &adapters, 1, 1).forward(&batch(&sequences)).unwrap();
        let want_logits = want.logits.unwrap();
        for (tensor, pipeline) in SPLITS {
            let got = engine(&sample, &adapters, tensor, pipeline).forward(&batch(&sequences)).unwrap();
            let error = difference(&got.logits.unwrap(), want_logits.iter().map(|l| f64::from(*l)));
            assert!(error < 1e-5, "{tensor} × {pipeline}: {error}");
            if tensor == 1 {
                assert_eq!(error, 0.0, "stages change no bit");
            }
            assert_eq!(got.tokens, want.tokens);
        }
    }
}

#[test]
fn each_split_is_batch_invariant_in_itself() {
    let sample = Sample::new(everything(), &[Form::F32]);
    for (tensor, pipeline) in SPLITS {
        let mut engine = engine(&sample, &[], tensor, pipeline);
        let [a, b] = [sequence(1, 7, -1), sequence(2, 5, -1)];
        let alone = [&a, &b].map(|s| logits(&mut engine, std::slice::from_ref(s)));
        assert_eq!(logits(&mut engine, &[a.clone(), b]), alone.concat());
        let mut stepped = logits(&mut engine, &[Sequence { tokens: a.tokens[..4].to_vec(), new: 4, adapter: -1 }]);
        stepped.extend(logits(&mut engine, &[Sequence { new: 3, ..a }]));
        assert_eq!(stepped, alone[0]);
    }
}

#[test]
fn blocks_move_between_engines_of_one_split() {
    let sample = Sample::new(tiny(), &[Form::F32]);
    let a = sequence(1, 8, -1);
    let next = Sequence { tokens: [a.tokens.clone(), vec![7]].concat(), new: 1, adapter: -1 };
    for (tensor, pipeline) in SPLITS {
        let [mut source, mut target] = [0, 1].map(|_| engine(&sample, &[], tensor, pipeline));
        // 4 layers × 2 heads × 4 tokens × (k, v) × 16 × 4 bytes, however many ranks share them.
        assert_eq!(source.block_bytes(), 4096);
        logits(&mut source, std::slice::from_ref(&a));
        let bytes = source.read_blocks(&[1, 0]).unwrap();
        target.write_blocks(&[0, 1], &[&bytes[4096..], &bytes[..4096]].concat()).unwrap();
        assert_eq!(target.read_blocks(&[1, 0]).unwrap(), bytes);
        let want = logits(&mut source, std::slice::from_ref(&next));
        assert_eq!(logits(&mut target, std::slice::from_ref(&next)), want);
        target.zero_blocks(&[1]).unwrap();
        assert!(target.read_blocks(&[1]).unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(target.read_blocks(&[0]).unwrap(), bytes[4096..]);
    }
}

#[test]
fn wrong_block_transfers_are_refused_and_nothing_more() {
    let sample = Sample::new(tiny(), &[Form::F32]);
    let mut engine = engine(&sample, &[], 2, 2);
    for ids in [vec![32], vec![-1], vec![3, 3], vec![i64::MAX]] {
        let refusal = engine.read_blocks(&ids).unwrap_err();
        assert!(refusal.is_callers_fault() && refusal.to_string().contains("must be 0 to 31 and occur once"));
        assert!(engine.zero_blocks(&ids).is_err());
    }
    assert!(engine.write_blocks(&[0], &[0; 4095]).unwrap_err().to_string().contains("buffer has 4095 bytes"));
    assert!(engine.forward(&tie_bones_model::batch::Batch::default()).unwrap_err().is_callers_fault());
    logits(&mut engine, &[sequence(1, 3, -1)]);
}

#[test]
fn sizes_of_the_cache_are_bounded() {
    use tie_bones_model::engine::{Engine, EngineOptions};
    let (model, _) = Sample::new(tiny(), &[Form::F32]).model(&[]);
    let build = |options: EngineOptions| {
        let made = Engine::<support::naive::Naive>::new(&model, &options, |_| unreachable!("refused before"));
        made.map(drop).unwrap_err().to_string()
    };
    assert!(build(EngineOptions { block_count: 0, ..OPTIONS }).contains("block_count is 0, must be 1 to"));
    assert!(build(EngineOptions { block_size_tokens: 1025, ..OPTIONS }).contains("must be 1 to 1024"));
}
