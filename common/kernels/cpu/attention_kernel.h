// Tasks of attention by the instructions at hand; see `for_each_isa.h`.
//
// Keys of a block are packed transposed, so that lanes are keys and a query's element is broadcast:
// a product's order over elements is then the same for one query and for many. For a few queries in
// bfloat16, where orders are free, packing would cost more than it saves: see `attention_few.h`.

namespace baton::ISA {

template <class Op>
class TaskKernel {
  using T = typename Op::Element;

 public:
  explicit TaskKernel(const Blocks<T>& blocks)
      : blocks_(blocks),
        n_rep_(blocks.plan.n_rep),
        head_dim_(blocks.plan.geometry.head_dim),
        n_values_(round_up(head_dim_, 16)),
        n_words_(head_dim_ / Op::PER_WORD),
        n_rows_(blocks.task.n_queries * n_rep_) {
    const int64_t n_running = round_up(partial_floats(n_rows_, head_dim_), 16);
    const int64_t n_keys = KEY_BLOCK * n_words_, n_packed = KEY_BLOCK / Op::PER_WORD * n_values_;
    const int64_t n_queries = round_up(n_rows_ * n_words_, 16);
    const int64_t n_fresh = partial_floats(TILE_ROWS, head_dim_);
    running_ = attention_scratch(n_running + n_keys + n_packed + n_queries + n_fresh +
                                 TILE_ROWS * KEY_BLOCK);
    packed_keys_ = running_ + n_running;
    packed_values_ = packed_keys_ + n_keys;
    queries_ = packed_values_ + n_packed;
    fresh_ = queries_ + n_queries;
    scores_ = fresh_ + n_fresh;
    const int32_t* start_B1 = blocks.plan.sequences.start_B1;
    const int sequence = blocks.task.sequence;
    first_position_ = blocks.plan.sequences.len_B[sequence] -
                      (start_B1[sequence + 1] - start_B1[sequence]) + blocks.task.first_query;
  }

  void run(float* partials) {
    copy_queries<Op>(blocks_, n_rows_, queries_, n_words_);
    for (; blocks_.more(); blocks_.advance()) {
      pack_block();
      attend_block(partial_at(partials ? partials : running_, n_rows_),
                   partials || blocks_.nth() == 0);
      if (partials) partials += partial_floats(n_rows_, head_dim_);
    }
    if (!partials) write_results<T>(blocks_, partial_at(running_, n_rows_));
  }

 private:
  void pack_block() {
    const Keys& here = blocks_.here();
    Ahead<T> values_ahead(blocks_.values, here, head_dim_);
    for (int i = 0; i < here.n; i += 16) {
      values_ahead.ask(KEY_BLOCK / 8);
      pack_keys(here.at + i, packed_keys_ + packed_at(i));
    }
    values_ahead.ask(KEY_BLOCK);
    Ahead<T> keys_ahead(blocks_.keys, blocks_.after(), head_dim_);
    float* to = packed_values_;
    for (int i = 0; i < here.n; i += Op::PER_WORD, to += n_values_) {
      keys_ahead.ask(Op::PER_WORD);
      const T* second = i + 1 < here.n ? blocks_.values + here.at[i + 1] : nullptr;
      Op::pack_values(blocks_.values + here.at[i], second, head_dim_, to);
    }
    keys_ahead.ask(KEY_BLOCK);
  }

  // Where the words of key i of the block begin; they are HALF_BLOCK apart.
  int64_t packed_at(int i) const {
    return int64_t{i} / HALF_BLOCK * HALF_BLOCK * n_words_ + i % HALF_BLOCK;
  }

  // 16 keys.
  void pack_keys(const int64_t* at, float* to) const {
    for (int w = 0; w < n_words_; w += 16) {
      const int n = n_words_ - w < 16 ? n_words_ - w : 16;
      const T* k = blocks_.keys + w * Op::PER_WORD;
      F32x16 rows[16];
      for (int j = 0; j < 16; j++) rows[j] = Op::load_words(k + at[j], n);
      transpose(rows);
      for (int j = 0; j < n; j++) store(to + (w + j) * HALF_BLOCK, rows[j]);
    }
  }

  // Keys of the block that a query sees. Queries are ordered, so it grows with the row.
  int n_seen(int row) const {
    const int n = first_position_ + row / n_rep_ + 1 - blocks_.block() * KEY_BLOCK;
    return n < KEY_BLOCK ? n : KEY_BLOCK;
  }

  void attend_block(const Partial& to, bool first) {
    const int unseen = blocks_.block() * KEY_BLOCK - first_position_;  // queries that see no key
    const int begin = unseen > 0 ? unseen * n_rep_ : 0;
    if (first) std::fill_n(to.maxima, begin, -__builtin_inff());  // whatever they see is above
    for (int r = begin; r < n_rows_; r += TILE_ROWS) {
      const int n = n_rows_ - r < TILE_ROWS ? n_rows_ - r : TILE_ROWS;
      const Partial there = {to.maxima + r, to.sums + r, to.values + int64_t{r} * n_values_};
      const Partial block = first ? there : partial_at(fresh_, TILE_ROWS);
      attend_rows(r, n, block);
      if (!first) merge(there, block, n, n_values_);
    }
  }

  void attend_rows(int row, int n, const Partial& to) {
    int seen[TILE_ROWS];
    for (int r = 0; r < n; r++) seen[r] = n_seen(row + r);
    const float* queries = queries_ + int64_t{row} * n_words_;
    for (int key = 0; key < seen[n - 1]; key += HALF_BLOCK) {
      const int n_left = (seen[n - 1] - key + 15) / 16;
      product<Op>(n, queries, n_words_, packed_keys_ + packed_at(key), HALF_BLOCK, scores_ + key,
                  KEY_BLOCK, 0, n_words_, n_left < HALF_BLOCK / 16 ? n_left : HALF_BLOCK / 16);
    }
    const float scale = score_scale(head_dim_);
    for (int r = 0; r < n; r++) {
      weigh<Op>(scores_ + r * KEY_BLOCK, seen[r], scale, to.maxima + r, to.sums + r);
    }
    const int together = seen[0] / Op::PER_WORD, n_vectors = n_values_ / 16;
    product<Op>(n, scores_, KEY_BLOCK, packed_values_, n_values_, to.values, n_values_, 0, together,
                n_vectors);
    for (int r = 0; r < n; r++) {  // what a row sees beyond the first of these rows
      const int end = (seen[r] + Op::PER_WORD - 1) / Op::PER_WORD;
      if (end > together) {
        product<Op>(1, scores_ + r * KEY_BLOCK, KEY_BLOCK, packed_values_, n_values_,
                    to.values + r * n_values_, n_values_, together, end, n_vectors);
      }
    }
  }

  Blocks<T> blocks_;
  const int n_rep_, head_dim_, n_values_, n_words_, n_rows_;
  int first_position_;
  float *running_, *packed_keys_, *packed_values_, *queries_, *fresh_, *scores_;
};

template <class Op>
void run_task(const AttentionPlan& plan, const AttentionTensors& tensors, const AttentionTask& task,
              const AttentionTask* next, float* partials) {
  TaskKernel<Op>(Blocks<typename Op::Element>(plan, tensors, task, next)).run(partials);
}

#if LEVEL >= 3
template <>
void run_task<ByPairs>(const AttentionPlan& plan, const AttentionTensors& tensors,
                       const AttentionTask& task, const AttentionTask* next, float* partials) {
  const Blocks<bf16> blocks(plan, tensors, task, next);
  const bool runs = plan.geometry.page_tokens % 16 == 0;
  const int n_rows = task.n_queries == 1 && runs ? plan.n_rep : 0;
  if (n_rows == 1) FewKernel<1>(blocks).run(partials);
  else if (n_rows == 2) FewKernel<2>(blocks).run(partials);
  else if (n_rows == 3) FewKernel<3>(blocks).run(partials);
  else if (n_rows == 4) FewKernel<4>(blocks).run(partials);
  else TaskKernel<ByPairs>(blocks).run(partials);
}
#endif

// The blocks of a query whose tasks were cut, in ascending order.
template <class T>
void merge_task(const AttentionPlan& plan, const AttentionTensors& tensors,
                const AttentionTask& task, const AttentionTask* /*next*/, float* partials) {
  const int n_rows = task.n_queries * plan.n_rep;
  const int64_t n_floats = partial_floats(n_rows, plan.geometry.head_dim);
  const Partial running = partial_at(partials, n_rows);
  for (int block = 1; block < task.end_block; block++) {
    merge(running, partial_at(partials + block * n_floats, n_rows), n_rows,
          round_up(plan.geometry.head_dim, 16));
  }
  write_results<T>(plan, tensors, task, running);
}

}  // namespace baton::ISA
