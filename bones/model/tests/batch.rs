//! Batches are refused by row and field, or planned.
#![allow(clippy::unwrap_used, reason = "a test ends where it is surprised")]

use proptest::prelude::*;
use std::sync::Arc;
use tie_bones_model::batch::{Batch, Limits, MAX_STEP_TOKENS, Segment};

const LIMITS: Limits = Limits {
    vocab_size: 40,
    context_length: 32,
    block_count: 6,
    block_size_tokens: 4,
    adapter_count: 3,
    fault_injection: false,
};

/// Row 0 prefills 5 tokens into blocks 3 and 1, row 1 decodes its sixth into block 0 after block 2.
fn good() -> Batch {
    Batch {
        token_ids: vec![1, 2, 3, 4, 5, 6],
        query_lens: vec![5, 1],
        context_lens: vec![5, 6],
        block_tables: vec![3, 1, 2, 0],
        block_table_offsets: vec![0, 2, 4],
        sample: vec![false, true],
        sampling: vec![None, Some(Arc::default())],
        ..Batch::default()
    }
}

fn refusal(change: impl Fn(&mut Batch)) -> String {
    let mut batch = good();
    change(&mut batch);
    batch.plan(&LIMITS).unwrap_err().to_string()
}

#[test]
fn bad_batches_are_refused_by_row_and_field() {
    assert!(refusal(|b| *b = Batch::default()).contains("query_lens is empty"));
    assert!(refusal(|b| b.token_ids[1] = 40).contains("row 0: token_ids entry 1 of the row lies outside"));
    assert!(refusal(|b| b.token_ids[5] = -1).contains("row 1: token_ids"));
    assert!(refusal(|b| b.token_ids.push(1)).contains("token_ids has 7 entries, query_lens add up to 6"));
    assert!(refusal(|b| b.query_lens[0] = 0).contains("row 0: query_lens must be at least 1"));
    assert!(refusal(|b| b.query_lens[0] = i32::MIN).contains("row 0: query_lens"));
    assert!(refusal(|b| b.query_lens[1] = 2).contains("row 1: query_lens exceed token_ids"));
    assert!(refusal(|b| b.context_lens[0] = 4).contains("row 0: context_lens must be 5"));
    assert!(refusal(|b| b.context_lens[1] = 33).contains("row 1: context_lens must be 1 (its query_lens) to 32"));
    assert!(refusal(|b| b.context_lens[1] = 9).contains("row 1: block_tables has 2 blocks, 9 tokens need 3"));
    assert!(refusal(|b| b.block_tables[2] = 6).contains("row 1: block_tables entry 0 is 6, must be 0 to 5"));
    assert!(refusal(|b| b.block_tables[2] = -1).contains("row 1: block_tables entry 0 is -1"));
    assert!(refusal(|b| b.block_table_offsets[1] = 5).contains("row 1: block_table_offsets decrease"));
    assert!(refusal(|b| b.block_table_offsets[0] = -1).contains("must run from 0 to 4"));
    assert!(refusal(|b| b.block_table_offsets.push(4)).contains("block_table_offsets has 4 entries"));
    assert!(refusal(|b| b.sample.clear()).contains("sample has 0 entries"));
    assert!(refusal(|b| b.sampling[1] = None).contains("row 1: sampling is missing"));
    assert!(refusal(|b| b.allowed_mask = Some(vec![0; 3])).contains("allowed_mask has 3 words, must have 2 × 2"));
    assert!(refusal(|b| b.adapters = Some(vec![-1])).contains("adapters has 1 entries, must have 2 for 2 rows"));
    assert!(
        refusal(|b| b.adapters = Some(vec![0, 3])).contains("row 1: adapters is 3, must be -1 for none or below 3")
    );
    assert!(
        refusal(|b| b.token_ids = vec![0; MAX_STEP_TOKENS + 1]).contains("token_ids has 65537 entries, limit 65536")
    );
    assert!(refusal(|b| b.poison = Some((0, 1.0))).contains("poison is refused"));
}

#[test]
fn blocks_that_a_step_writes_belong_to_one_entry() {
    assert!(refusal(|b| b.block_tables[3] = 1).contains("already writes"));
    assert!(refusal(|b| b.block_tables[2] = 1).contains("writes elsewhere"));
    assert!(refusal(|b| b.block_tables[2] = 0).contains("writes elsewhere"));
}

#[test]
fn shared_blocks_that_nobody_writes_are_fine() {
    let batch = Batch {
        token_ids: vec![1, 2],
        query_lens: vec![1, 1],
        context_lens: vec![5, 6],
        block_tables: vec![2, 0, 2, 1],
        block_table_offsets: vec![0, 2, 4],
        sample: vec![false; 2],
        sampling: vec![None, None],
        ..Batch::default()
    };
    assert_eq!(batch.plan(&LIMITS).unwrap().positions, [4, 5]);
}

#[test]
fn a_plan_holds_positions_and_used_blocks() {
    let plan = Batch { block_tables: vec![3, 1, 5, 2, 0], block_table_offsets: vec![0, 3, 5], ..good() }
        .plan(&LIMITS)
        .unwrap();
    assert_eq!(plan.positions, [0, 1, 2, 3, 4, 5]);
    assert_eq!(plan.tables, [3, 1, 2, 0]);
    assert_eq!(plan.rows[1].first_block, 2);
}

#[test]
fn neighbouring_rows_of_one_adapter_are_one_segment() {
    let segments = |adapters: [i32; 5]| {
        let batch = Batch {
            token_ids: vec![1; 6],
            query_lens: vec![2, 1, 1, 1, 1],
            context_lens: vec![2, 1, 1, 1, 1],
            block_tables: vec![0, 1, 2, 3, 4],
            block_table_offsets: vec![0, 1, 2, 3, 4, 5],
            sample: vec![false; 5],
            sampling: vec![None; 5],
            adapters: Some(adapters.to_vec()),
            ..Batch::default()
        };
        let segments = batch.plan(&LIMITS).unwrap().segments;
        segments.into_iter().map(|Segment { adapter, tokens }| (adapter, tokens)).collect::<Vec<_>>()
    };
    assert_eq!(segments([-1; 5]), []);
    assert_eq!(segments([2; 5]), [(2, 0..6)]);
    assert_eq!(segments([0, 0, 1, -1, 1]), [(0, 0..3), (1, 3..4), (1, 5..6)]);
    assert!(good().plan(&LIMITS).unwrap().segments.is_empty());
}

proptest! {
    #[test]
    fn any_numbers_are_answered(
        tokens in proptest::collection::vec(-2..42, 0..8),
        query in proptest::collection::vec(prop_oneof![-1..6, Just(i32::MAX)], 0..4),
        context in proptest::collection::vec(prop_oneof![-1..40, Just(i32::MAX)], 0..4),
        tables in proptest::collection::vec(-1..7, 0..8),
        adapters in proptest::option::of(proptest::collection::vec(-2..4, 0..4)),
        offsets in proptest::collection::vec(prop_oneof![-1..9, Just(i32::MAX)], 0..5),
    ) {
        let rows = query.len();
        let batch = Batch {
            token_ids: tokens, query_lens: query, context_lens: context, block_tables: tables,
            block_table_offsets: offsets, adapters, sample: vec![false; rows], sampling: vec![None; rows],
            ..Batch::default()
        };
        if let Ok(plan) = batch.plan(&LIMITS) {
            prop_assert!(plan.tables.iter().all(|&b| b < 6));
            prop_assert_eq!(plan.tokens.len(), plan.positions.len());
        }
    }
}
