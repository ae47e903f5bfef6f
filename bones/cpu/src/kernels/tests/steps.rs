//! Attention of whole steps: several sequences at once, on one thread and on more.

use super::attention::{How, SIZES, Sequence, is_near};
use super::cache::{DTYPES, used_pages};
use super::{bits, noise};
use crate::attention::{Work, attend};
use crate::cache::Pages;
use crate::pool::Pool;
use crate::simd::Isa;
use proptest::prelude::*;
use std::ops::Range;
use tie_bones_model::backend::{Attention, CacheShape, Heads};
use tie_bones_model::batch::{RowPlan, StepPlan};

/// Sequences in one cache, and the queries of each of their tokens.
struct Cached {
    how: How,
    heads: Heads,
    window: Option<usize>,
    pages: Pages,
    sequences: Vec<Sequence>,
    queries: Vec<Vec<f32>>,
}

impl Cached {
    fn new(how: How, query_heads: usize, window: Option<usize>, contexts: &[usize]) -> Self {
        let CacheShape { block_size_tokens: size, kv_heads: kv, head_dim: dim, .. } = how.shape;
        let heads = Heads { query: query_heads, kv, dim };
        let mut pages = used_pages(how.shape);
        // Blocks of the sequences take turns, from the largest index down.
        let mut free = (0..how.shape.block_count as u32).rev();
        let mut blocks = vec![Vec::new(); contexts.len()];
        while let Some(index) =
            (0..contexts.len()).filter(|&i| blocks[i].len() * size < contexts[i]).min_by_key(|&i| blocks[i].len())
        {
            blocks[index].push(free.next().unwrap());
        }
        let seeds = (10..).step_by(10);
        let sequences = blocks.into_iter().zip(contexts).zip(seeds);
        let sequences = sequences.map(|((blocks, len), seed)| Sequence::new(&mut pages, seed, *len, blocks)).collect();
        let queries = contexts.iter().zip(5..).map(|(len, seed)| noise(seed, len * query_heads * dim)).collect();
        Self { how, heads, window, pages, sequences, queries }
    }

    /// One step with some tokens of some sequences.
    fn step(&self, (isa, threads): (Isa, usize), rows: &[(usize, Range<usize>)]) -> Vec<Vec<f32>> {
        let (mut plan, mut qkv) = (StepPlan::default(), Vec::new());
        let width = self.heads.query * self.heads.dim;
        for (index, tokens) in rows {
            plan.rows.push(RowPlan {
                first_token: plan.tokens.len(),
                query_len: tokens.len(),
                context_len: tokens.end,
                first_block: plan.tables.len(),
            });
            let used = tokens.end.div_ceil(self.how.shape.block_size_tokens);
            plan.tables.extend(&self.sequences[*index].blocks[..used]);
            for token in tokens.clone() {
                plan.tokens.push(0);
                plan.positions.push(token as u32);
                qkv.extend(&self.queries[*index][token * width..(token + 1) * width]);
                // Keys and values are in the cache.
                qkv.extend(vec![f32::NAN; 2 * self.heads.kv * self.heads.dim]);
            }
        }
        let How { scale, softcap, .. } = self.how;
        let work = Work {
            pool: &Pool::new(threads).unwrap(),
            isa,
            plan: &plan,
            cache: (&self.pages, 1),
            heads: self.heads,
            attention: &Attention { scale, softcap, window: self.window, rope: None },
            qkv: (&qkv, width + 2 * self.heads.kv * self.heads.dim),
        };
        let mut out = vec![f32::NAN; plan.tokens.len() * width];
        attend(&work, &mut out);
        let rows = plan.rows.iter().map(|row| row.first_token * width..(row.first_token + row.query_len) * width);
        rows.map(|at| out[at].to_vec()).collect()
    }

    /// Whether a token's results are those of the definition.
    fn is_right(&self, index: usize, token: usize, got: &[f32]) -> bool {
        let Heads { query, kv, dim } = self.heads;
        let q = self.queries[index].chunks_exact(dim).skip(token * query);
        let seen = self.window.map_or(0, |window| (token + 1).saturating_sub(window))..token + 1;
        let mut heads = q.zip(got.chunks_exact(dim)).enumerate();
        heads.all(|(head, (q, got))| {
            let want = self.sequences[index].attend(&self.how, head / (query / kv), q, seen.clone());
            is_near(got, &want, self.how.shape.dtype)
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_step_is_right_and_no_bit_depends_on_company_threads_or_where_prefill_is_split(
        (dim, kv_heads, group) in (1_usize..40, 1_usize..3, 1_usize..5), size in 0_usize..5,
        contexts in (1_usize..330, 1_usize..60, 1_usize..700), split in 0.0..1.0_f64,
        window in prop_oneof![Just(None), (1_usize..50).prop_map(Some)], softcap in prop_oneof![Just(None), Just(Some(3.0_f32))],
    ) {
        let (size, contexts) = (SIZES[size], [contexts.0, contexts.1, contexts.2]);
        let block_count = contexts.iter().map(|len| len.div_ceil(size)).sum();
        for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| DTYPES.map(|dtype| (isa, dtype))) {
            let shape =
                CacheShape { block_count, block_size_tokens: size, layer_count: 2, kv_heads, head_dim: dim, dtype };
            let how = How { shape, scale: 0.7, softcap };
            let cached = Cached::new(how, kv_heads * group, window, &contexts);
            let width = kv_heads * group * dim;
            // One sequence prefills, one continues, one decodes.
            let at = (split * contexts[1] as f64) as usize;
            let rows = [(0, 0..contexts[0]), (1, at..contexts[1]), (2, contexts[2] - 1..contexts[2])];
            let together = cached.step((isa, 1), &rows);
            for ((index, tokens), got) in rows.iter().zip(&together) {
                for (token, got) in tokens.clone().zip(got.chunks_exact(width)) {
                    // Every token of a long sequence would take long.
                    if tokens.end - token < 8 || token % 29 == 0 {
                        prop_assert!(cached.is_right(*index, token, got), "{dtype:?} {} {token}", isa.name());
                    }
                }
            }
            for threads in [1, 2, 3] {
                prop_assert_eq!(together.iter().map(|row| bits(row)).collect::<Vec<_>>(),
                    cached.step((isa, threads), &rows).iter().map(|row| bits(row)).collect::<Vec<_>>());
                for ((index, tokens), together) in rows.iter().zip(&together) {
                    let cut = tokens.start + (split * tokens.len() as f64) as usize;
                    let parts = [tokens.start..cut, cut..tokens.end].map(|part| (*index, part));
                    let parts = parts.iter().filter(|(_, part)| !part.is_empty());
                    let alone: Vec<f32> =
                        parts.flat_map(|part| cached.step((isa, threads), std::slice::from_ref(part)).concat()).collect();
                    prop_assert_eq!(bits(&alone), bits(together), "{:?} {} {} threads", dtype, isa.name(), threads);
                }
            }
        }
    }
}
