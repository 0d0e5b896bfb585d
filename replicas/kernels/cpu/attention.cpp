// Causal attention over the paged KV cache, reading keys and values where they lie.
//
// A task walks what its queries see of the context in tiles and keeps a running maximum and sum for each row, which is
// one head of one query (the online softmax of Milakov and Gimelshein, 2018), so no score is ever stored for longer
// than a tile. Scores and sums are float. Where a sequence has few queries, as in decoding, a task is a part of its
// context, and the parts are put together at the end (as in Flash-Decoding: Dao et al., 2023). How many there are
// depends on the sequence alone, so its output does not depend on the batch. Where it has many, a task is one KV head
// and a tile of queries.

#include "arguments.h"
#include "attention_few.h"
#include "attention_many.h"

#include <atomic>
#include <vector>

namespace {

constexpr int64_t SHORTEST_PART = 64, LONGEST_PART = 256;
constexpr int64_t MOST_FEW_ROWS = 7;

// Below this many products, waking a thread costs more than it helps.
constexpr int64_t WORTH_SHARING = 1 << 15;

// At least two, if the length allows, so that threads can share the work of a single sequence.
inline int64_t parts_of(int64_t length) {
    return length < 2 * SHORTEST_PART ? 1 : std::max<int64_t>(2, (length + LONGEST_PART - 1) / LONGEST_PART);
}

struct Tasks {
    std::vector<ManyTask> many;
    std::vector<FewTask> few;
    std::vector<int64_t> wholes = {0};  // where in `few` each sequence's parts start, and the end
    std::vector<int64_t> memory = {0};  // where, in floats, lies what each part sees, and the end
    int64_t cost = 0;

    template <typename Scalar>
    explicit Tasks(const Step<Scalar>& step) {
        for (int64_t s = 0; s < step.sequences; s++) {
            const int64_t queries = step.num_queries(s);
            cost += queries * step.context_lens[s] * step.kv_heads * step.group * step.head_dim;
            if (queries > 1 && queries * step.group > MOST_FEW_ROWS)
                add_many(step, s);
            else if (queries)
                add_few(step, s);
        }
    }

private:
    // The longest first.
    template <typename Scalar>
    void add_many(const Step<Scalar>& step, int64_t sequence) {
        for (int64_t last = step.num_queries(sequence); last > 0; last -= QUERY_TILE)
            for (int64_t kv_head = 0; kv_head < step.kv_heads; kv_head++) {
                const int64_t first = std::max<int64_t>(last - QUERY_TILE, 0);
                many.push_back({sequence, first, last - first, kv_head});
            }
    }

    template <typename Scalar>
    void add_few(const Step<Scalar>& step, int64_t sequence) {
        const int64_t start = step.first_seen(step.position(sequence, 0));
        const int64_t length = step.context_lens[sequence] - start, parts = parts_of(length);
        const int64_t whole = wholes.size() - 1;
        for (int64_t p = 0; p < parts; p++) {
            few.push_back({sequence, start + length * p / parts, start + length * (p + 1) / parts, whole});
            memory.push_back(memory.back() + Seen::floats_of(few.back().rows(step), step.head_dim));
        }
        wholes.push_back(few.size());
    }
};

template <int PAIRS, typename Scalar>
void attend(const Step<Scalar>& step) {
    static thread_local Scratch shared;
    const Tasks tasks(step);
    float* memory = reinterpret_cast<float*>(shared.of(tasks.memory.back() * sizeof(float)));
    std::vector<Seen> seen;
    for (size_t i = 0; i < tasks.few.size(); i++)
        seen.emplace_back(memory + tasks.memory[i], tasks.few[i].rows(step), step.head_dim);
    const int64_t many = tasks.many.size(), count = many + tasks.few.size(), wholes = tasks.wholes.size() - 1;
    std::vector<std::atomic<int64_t>> unseen(wholes);
    for (int64_t w = 0; w < wholes; w++) unseen[w] = tasks.wholes[w + 1] - tasks.wholes[w];
    std::atomic<int64_t> taken = 0;
#pragma omp parallel if (tasks.cost > WORTH_SHARING)
    {
        static thread_local Scratch scratch;
        for (int64_t i = taken++, ahead; i < count; i = ahead) {
            ahead = taken++;
            if (i < many) {
                attend_many<PAIRS * 2 * LANES>(step, tasks.many[i], scratch);
                continue;
            }
            const FewTask &task = tasks.few[i - many], &next = tasks.few[std::min(ahead, count - 1) - many];
            attend_few<PAIRS>(step, task, next, seen[i - many], scratch);
            if (--unseen[task.whole]) continue;
            const int64_t first = tasks.wholes[task.whole];
            finish_few<PAIRS>(step, task, seen.data() + first, tasks.wholes[task.whole + 1] - first);
        }
    }
}

template <typename Scalar>
void attend_to_heads(const Step<Scalar>& step) {
    if (step.head_dim == 64)
        attend<2>(step);
    else
        attend<4>(step);
}

template <typename Scalar>
Step<Scalar> step_of(const int64_t* a) {
    return {address<Scalar>(a[0]),  address<Scalar>(a[1]),  address<Scalar>(a[2]), address<int64_t>(a[3]),
            address<int32_t>(a[4]), address<int32_t>(a[5]), address<Scalar>(a[6]), a[7],
            a[8],                   a[9],                   a[10],                 a[11],
            a[12],                  a[13],                  a[14]};
}

}  // namespace

extern "C" {

// Attention of a step's queries over their sequences' caches, which already hold the step's own keys and values.
// Sequence s has the queries query_starts[s] to query_starts[s + 1]: the last of its context_lens[s] tokens. Query i
// sees key j when j <= i and, with a window, i - j < window. `head_dim` is 64 or 128. Arguments: query, keys, values,
// block_tables (64 bits), query_starts and context_lens (32 bits), out, sequences, table_width, block_size,
// query_stride, KV heads, query heads to a KV head, head_dim, window, is_bf16.
void mobula_attention(const int64_t* a) {
    if (a[15])
        attend_to_heads(step_of<bfloat16>(a));
    else
        attend_to_heads(step_of<float>(a));
}
}
