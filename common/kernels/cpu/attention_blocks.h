// The key blocks of a task, one after the other; see `for_each_isa.h`.

namespace baton::ISA {

// Where a block's keys lie: elements from the layer's first. There is always a multiple of 16 of
// them, those past the `n` written the same as the first.
struct Keys {
  int n;
  int64_t at[KEY_BLOCK];
};

// Asks for the keys, or values, of a block while another is computed: into the second-level cache,
// because the first has room for few requests and so would read at half the memory's speed.
template <class T>
class Ahead {
 public:
  Ahead(const T* first, const Keys& keys, int head_dim)
      : first_(first), keys_(keys), n_bytes_(head_dim * static_cast<int>(sizeof(T))) {}

  // The next n keys.
  void ask(int n) {
    const int end = n_asked_ + n < keys_.n ? n_asked_ + n : keys_.n;
    for (; n_asked_ < end; n_asked_++) {
      const char* p = reinterpret_cast<const char*>(first_ + keys_.at[n_asked_]);
      for (int i = 0; i < n_bytes_; i += 64) _mm_prefetch(p + i, _MM_HINT_T1);
    }
  }

 private:
  const T* first_;
  const Keys& keys_;
  const int n_bytes_;
  int n_asked_ = 0;
};

// Knows, besides this block's keys, those that this thread will probably read next: pages are
// anywhere in memory, so nobody else can see them coming.
template <class T>
class Blocks {
 public:
  Blocks(const AttentionPlan& plan, const AttentionTensors& tensors, const AttentionTask& task,
         const AttentionTask* next)
      : plan(plan),
        tensors(tensors),
        task(task),
        keys(static_cast<const T*>(tensors.k)),
        values(static_cast<const T*>(tensors.v)),
        next_(next),
        block_(task.first_block) {
    find(task, block_, found_[block_ % 2]);
    look_ahead();
  }

  bool more() const { return block_ < task.end_block; }
  void advance() {
    block_++;
    look_ahead();
  }

  int block() const { return block_; }
  int nth() const { return block_ - task.first_block; }
  const Keys& here() const { return found_[block_ % 2]; }
  const Keys& after() const { return found_[(block_ + 1) % 2]; }

  const AttentionPlan& plan;
  const AttentionTensors& tensors;
  const AttentionTask& task;
  const T *const keys, *const values;  // the layer's first

 private:
  void look_ahead() {
    Keys& after = found_[(block_ + 1) % 2];
    if (block_ + 1 < task.end_block) find(task, block_ + 1, after);
    else if (next_) find(*next_, next_->first_block, after);
    else after.n = 0;
  }

  void find(const AttentionTask& which, int block, Keys& found) const {
    const PageGeometry& g = plan.geometry;
    const int begin = block * KEY_BLOCK, left = plan.sequences.len_B[which.sequence] - begin;
    const int n = left < KEY_BLOCK ? left : KEY_BLOCK;
    const int32_t* table =
        plan.sequences.tables_BM + int64_t{which.sequence} * plan.sequences.table_width;
    int page = begin / g.page_tokens, place = begin % g.page_tokens;
    for (int i = 0; i < n; page++, place = 0) {
      int64_t at =
          table[page] * g.stride + (int64_t{which.kv_head} * g.page_tokens + place) * g.head_dim;
      const int end = n - i < g.page_tokens - place ? n : i + g.page_tokens - place;
      for (; i < end; i++, at += g.head_dim) found.at[i] = at;
    }
    for (int i = n; i < round_up(n, 16); i++) found.at[i] = found.at[0];
    found.n = n;
  }

  const AttentionTask* const next_;
  int block_;
  Keys found_[2];  // of even and of odd blocks
};

// The task's query rows, token by token, as words; each padded with zeros to `n_words`.
template <class Op, class T>
void copy_queries(const Blocks<T>& blocks, int n_rows, float* to, int n_words) {
  const AttentionPlan& plan = blocks.plan;
  const int head_dim = plan.geometry.head_dim;
  const int64_t row = plan.sequences.start_B1[blocks.task.sequence] + blocks.task.first_query;
  const T* q = static_cast<const T*>(blocks.tensors.q) + row * blocks.tensors.q_stride +
               int64_t{blocks.task.kv_head} * plan.n_rep * head_dim;
  for (int r = 0, rep = 0; r < n_rows; r++, to += n_words) {
    const T* head = q + rep * head_dim;
    for (int w = 0; w < n_words; w += 16) {
      const int n = n_words - w < 16 ? n_words - w : 16;
      const int left = head_dim / Op::PER_WORD - w;
      store(to + w, Op::load_words(head + w * Op::PER_WORD, left < 0 ? 0 : left), n);
    }
    if (++rep == plan.n_rep) {
      rep = 0;
      q += blocks.tensors.q_stride;
    }
  }
}

// The results of a task all of whose blocks are merged.
template <class T>
void write_results(const AttentionPlan& plan, const AttentionTensors& tensors,
                   const AttentionTask& task, const Partial& done) {
  const int head_dim = plan.geometry.head_dim, n_values = round_up(head_dim, 16);
  const int64_t row = plan.sequences.start_B1[task.sequence] + task.first_query;
  T* out = static_cast<T*>(tensors.out) + row * tensors.out_stride +
           int64_t{task.kv_head} * plan.n_rep * head_dim;
  const float* values = done.values;
  for (int r = 0, rep = 0; r < task.n_queries * plan.n_rep; r++, values += n_values) {
    T* head = out + rep * head_dim;
    const F32x16 scale = splat(1.0f / done.sums[r]);
    int d = 0;
    for (; d + 16 <= head_dim; d += 16) store(head + d, load(values + d) * scale);
    if (d < head_dim) store(head + d, load(values + d) * scale, head_dim - d);
    if (++rep == plan.n_rep) {
      rep = 0;
      out += tensors.out_stride;
    }
  }
}

template <class T>
void write_results(const Blocks<T>& blocks, const Partial& done) {
  write_results<T>(blocks.plan, blocks.tensors, blocks.task, done);
}

}  // namespace baton::ISA
