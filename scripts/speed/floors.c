/* The engine's work in C, as a lower bound of its time. floors.py builds and calls it.

One worker, blocks of one token, affine batch times, exact predictions, evicted requests lose their progress and wait
in order of arrival. Three policies (MC-SF, Sarathi-Serve's, first come first served with LIFO eviction), each with one of
three levels of records:

  FINISH  finish times only;
  EVENTS  all records, updated when a request starts, leaves, or has recomputed the tokens it had delivered;
  TOKENS  all records, updated for every request of the batch in every iteration, as the engine does.

x is the number of the coming iteration throughout. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MC_SF, SARATHI, FCFS };
enum { FINISH, EVENTS, TOKENS };
enum { NONE = -1 };

#define INLINE static inline __attribute__((always_inline))

typedef struct {                                        /* as floors.py: Instance */
    int64_t n, capacity, budget, max_requests, longest; /* longest: output, tokens */
    const double *arrival;
    const int32_t *prompt, *output;
    double constant, per_prefill, per_decode, per_context; /* seconds */
    int64_t gap_bins, gap_octaves, gap_exponent;
    double *start, *first, *finish, *gap; /* records, (n,) */
    int64_t *gap_counts;
    double *gap_sums;
} Instance;

typedef struct { /* TOKENS: a running request */
    int32_t id, kv, left, planned, made, delivered, target;
    double last, gap;
} Slot;

typedef struct { /* a request while it waits; except with TOKENS also while it runs */
    int32_t left, planned, born, since, delivered, older, newer, cal_next, cal_prev;
    double last;
} Request;

typedef struct { /* the gap of an iteration that no later one has reached */
    int64_t x;
    double gap;
} Peak;

typedef struct {
    Instance in;
    double clock, last_end;
    int64_t x, kv, active, prefills, streaming, arrived, done, head;
    Slot *slots;
    int32_t *notes; /* slots that finish, or whose token is not the next one of a stream */
    Request *r;
    int32_t newest, *prefilling; /* in order of activation */
    int32_t *calendar;           /* first request whose next event is in iteration x, at x & mask */
    int64_t mask;
    Peak *peaks; /* EVENTS */
    int64_t num_peaks, max_peaks;
    int32_t *bucket, *bucket_end, *bucket_next; /* MC-SF: waiting requests by predicted length */
    uint64_t *filled; /* a bit for each bucket */
    int64_t blocked, blocked_until, horizon, origin;
    int32_t *profile; /* MC-SF: memory of the iterations to come */
} World;

World *floor_open(const Instance *in) {
    World *w = calloc(1, sizeof *w);
    int64_t n = in->n, lengths = in->longest + 2, size = 1;
    while (size <= lengths) size *= 2;
    w->in = *in;
    w->newest = NONE, w->blocked = NONE, w->mask = size - 1, w->horizon = lengths;
    w->slots = calloc(n, sizeof *w->slots), w->notes = calloc(n, sizeof *w->notes);
    w->r = calloc(n, sizeof *w->r), w->prefilling = calloc(n, sizeof *w->prefilling);
    w->calendar = malloc(size * sizeof *w->calendar);
    memset(w->calendar, 0xff, size * sizeof *w->calendar);
    w->max_peaks = 64, w->peaks = malloc(w->max_peaks * sizeof *w->peaks);
    w->bucket = malloc(lengths * sizeof *w->bucket), w->bucket_end = malloc(lengths * sizeof *w->bucket_end);
    memset(w->bucket, 0xff, lengths * sizeof *w->bucket);
    w->filled = calloc(lengths / 64 + 1, sizeof *w->filled);
    w->bucket_next = calloc(n, sizeof *w->bucket_next), w->profile = calloc(2 * lengths, sizeof *w->profile);
    for (int64_t i = 0; i < n; i++) w->r[i].last = NAN;
    return w;
}

void floor_close(World *w) {
    void *rooms[] = {w->slots, w->notes, w->r, w->prefilling, w->calendar, w->peaks,
                     w->bucket, w->bucket_end, w->bucket_next, w->filled, w->profile, w};
    for (size_t k = 0; k < sizeof rooms / sizeof *rooms; k++) free(rooms[k]);
}

/* ---- records */

INLINE void count_gap(World *w, double gap, int64_t count) {
    int64_t per_octave = w->in.gap_bins / w->in.gap_octaves, bin = 0;
    if (gap > 0.0) {
        int exponent;
        double mantissa = frexp(gap, &exponent);
        bin = (exponent - w->in.gap_exponent) * per_octave + (int64_t)((2.0 * mantissa - 1.0) * per_octave);
    }
    bin = bin < 0 ? 0 : bin >= w->in.gap_bins ? w->in.gap_bins - 1 : bin;
    w->in.gap_counts[bin] += count;
    w->in.gap_sums[bin] += gap * count;
}

INLINE void raise_to(double *gap, double value) {
    if (value > *gap) *gap = value;
}

/* A first token, or one after an eviction. */
INLINE void deliver(World *w, int32_t i, double last, double *gap, double end) {
    if (isnan(last)) {
        w->in.first[i] = end;
    } else {
        raise_to(gap, end - last);
        count_gap(w, end - last, 1);
    }
}

/* EVENTS: the gap of iteration x, and the largest of all after `since`. */
INLINE void note_gap(World *w, double gap) {
    while (w->num_peaks > 0 && w->peaks[w->num_peaks - 1].gap <= gap) w->num_peaks--;
    if (w->num_peaks == w->max_peaks) w->peaks = realloc(w->peaks, (w->max_peaks *= 2) * sizeof *w->peaks);
    w->peaks[w->num_peaks++] = (Peak){w->x, gap};
}

INLINE double largest_since(World *w, int32_t since) {
    int64_t low = 0, high = w->num_peaks;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (w->peaks[middle].x > since) high = middle;
        else low = middle + 1;
    }
    return low < w->num_peaks ? w->peaks[low].gap : 0.0;
}

/* ---- FINISH, EVENTS: the calendar of next events */

INLINE void expect(World *w, int32_t i, int64_t x) {
    int32_t *first = &w->calendar[x & w->mask];
    w->r[i].cal_prev = NONE, w->r[i].cal_next = *first;
    if (*first != NONE) w->r[*first].cal_prev = i;
    *first = i;
}

INLINE void forget(World *w, int32_t i, int64_t x) {
    Request *r = &w->r[i];
    if (r->cal_next != NONE) w->r[r->cal_next].cal_prev = r->cal_prev;
    if (r->cal_prev != NONE) w->r[r->cal_prev].cal_next = r->cal_next;
    else w->calendar[x & w->mask] = r->cal_next;
}

INLINE int64_t next_event(World *w, int32_t i, int records) {
    Request *r = &w->r[i];
    int behind = records == EVENTS && r->since == NONE;
    return r->born + (behind ? r->delivered : w->in.output[i] - 1);
}

INLINE void leave(World *w, int32_t i) {
    Request *r = &w->r[i];
    if (r->newer != NONE) w->r[r->newer].older = r->older;
    else w->newest = r->older;
    if (r->older != NONE) w->r[r->older].newer = r->newer;
    w->active--;
}

INLINE void finish(World *w, int32_t i, double end) {
    w->in.finish[i] = end;
    w->kv -= w->in.prompt[i] + w->in.output[i];
    w->done++;
}

/* The next event of decoding request i: it has recomputed its delivered tokens, or finishes. */
INLINE void reach(World *w, int32_t i, double end, int records) {
    Request *r = &w->r[i];
    int64_t last = r->born + w->in.output[i] - 1;
    if (records == EVENTS && r->since == NONE) {
        deliver(w, i, r->last, &w->in.gap[i], end);
        r->since = (int32_t)w->x;
        w->streaming++;
        if (last > w->x) {
            expect(w, i, last);
            return;
        }
    }
    if (records == EVENTS) {
        raise_to(&w->in.gap[i], largest_since(w, r->since));
        w->streaming--;
    }
    leave(w, i);
    finish(w, i, end);
}

/* ---- running requests, at all levels of records */

INLINE void activate(World *w, int32_t i, int32_t planned, int records) {
    Request *r = &w->r[i];
    r->left = w->in.prompt[i], r->planned = planned;
    if (records != FINISH && isnan(w->in.start[i])) w->in.start[i] = w->clock;
    if (records == TOKENS) {
        w->slots[w->active] =
            (Slot){i, 0, r->left, planned, 0, r->delivered, w->in.output[i], r->last, w->in.gap[i]};
    } else {
        r->since = NONE, r->older = w->newest, r->newer = NONE;
        if (w->newest != NONE) w->r[w->newest].newer = i;
        w->newest = i;
        w->prefilling[w->prefills] = i;
    }
    w->prefills++, w->active++;
}

/* Evict the latest activated; returns the memory it held. */
INLINE int64_t evict(World *w, int records) {
    int32_t i, kv, left;
    if (records == TOKENS) {
        Slot *s = &w->slots[--w->active];
        i = s->id, kv = s->kv, left = s->left;
        if (s->made > s->delivered) w->r[i].delivered = s->made;
        w->r[i].last = s->last, w->in.gap[i] = s->gap;
    } else {
        i = w->newest, left = w->r[i].left;
        Request *r = &w->r[i];
        int32_t made = left > 0 ? 0 : (int32_t)w->x - r->born;
        kv = w->in.prompt[i] - left + made;
        if (left == 0) forget(w, i, next_event(w, i, records));
        if (left == 0 && records == EVENTS && r->since != NONE) {
            raise_to(&w->in.gap[i], largest_since(w, r->since));
            r->last = w->last_end, r->delivered = made;
            w->streaming--;
        }
        leave(w, i);
    }
    if (left > 0) w->prefills--;
    w->kv -= kv;
    w->head = i; /* all waiting requests are younger */
    return kv;
}

/* First in the queue: running requests are older than waiting ones, so only finished ones lie between. */
INLINE int64_t first_waiting(World *w) {
    while (w->head < w->arrived && !isnan(w->in.finish[w->head])) w->head++;
    return w->head < w->arrived ? w->head : NONE;
}

/* ---- the policies */

INLINE void decide_fcfs(World *w, int records) {
    int64_t need = w->kv + w->active, i;
    if (need > w->in.capacity) {
        for (; need > w->in.capacity && w->active > 0; need = w->kv + w->active) evict(w, records);
        return;
    }
    while ((i = first_waiting(w)) != NONE && need + w->in.prompt[i] + 1 <= w->in.capacity) {
        need += w->in.prompt[i] + 1;
        activate(w, (int32_t)i, w->in.prompt[i], records);
        w->head++;
    }
}

INLINE int32_t *left_of(World *w, int64_t k, int records) {
    return records == TOKENS ? &w->slots[k].left : &w->r[w->prefilling[k]].left;
}

INLINE void decide_sarathi(World *w, int records) {
    int64_t capacity = w->in.capacity, evicted = 0, reserved = 0, i;
    int64_t need = w->kv + w->active - w->prefills;
    while (w->active > 0) {
        int64_t extra = w->active == w->prefills ? 1 + (*left_of(w, 0, records) == 1) : 0;
        if (need + extra <= capacity) break;
        evict(w, records);
        evicted++;
        need = w->kv + w->active - w->prefills;
    }
    int64_t budget = w->in.budget - (w->active - w->prefills), room = capacity - need;
    int64_t k = records == TOKENS ? w->active : w->prefills;
    for (int64_t seen = 0; seen < w->prefills; seen += *left_of(w, k, records) > 0) k--; /* the oldest prefill */
    for (int64_t seen = 0; seen < w->prefills; k++) {
        int32_t left = *left_of(w, k, records);
        if (left == 0) continue;
        int64_t chunk = left < budget ? left : budget;
        chunk = chunk < room ? chunk : room;
        chunk = chunk < 0 ? 0 : chunk;
        if (chunk == left && left + 1 > room) chunk--;
        if (chunk == 0) budget = 0;
        *(records == TOKENS ? &w->slots[k].planned : &w->r[w->prefilling[k]].planned) = (int32_t)chunk;
        budget -= chunk, room -= chunk + (chunk == left), reserved += left + 1, seen++;
    }
    if (evicted > 0) return;
    int64_t used = need + reserved;
    while (budget > 0 && w->active < w->in.max_requests && (i = first_waiting(w)) != NONE) {
        int64_t left = w->in.prompt[i];
        if (left + 1 > capacity - used) break;
        used += left + 1;
        activate(w, (int32_t)i, (int32_t)(left < budget ? left : budget), records);
        budget -= left < budget ? left : budget;
        w->head++;
    }
}

INLINE void push(World *w, int32_t i) {
    int32_t length = w->in.output[i];
    w->bucket_next[i] = NONE;
    if (w->bucket[length] == NONE) w->bucket[length] = i;
    else w->bucket_next[w->bucket_end[length]] = i;
    w->bucket_end[length] = i;
    w->filled[length / 64] |= 1ull << length % 64;
}

INLINE int64_t shortest(const World *w) {
    for (int64_t word = 0; word <= w->horizon / 64; word++)
        if (w->filled[word]) return 64 * word + __builtin_ctzll(w->filled[word]);
    return NONE;
}

/* For how many iterations a request stays blocked: its ramp exceeds the memory by e in round k, for min(e, k). */
INLINE int32_t blocked_for(const int32_t *profile, int32_t excess, int32_t rounds) {
    int32_t bound = 0;
    for (int32_t k = 0; k < rounds; k++) {
        int32_t above = profile[k] + excess + k, round = k + 1;
        int32_t wait = above < round ? above : round;
        bound = wait > bound ? wait : bound;
    }
    return bound;
}

INLINE void decide_mc_sf(World *w, int records) {
    while (w->x - w->origin >= w->horizon) {
        memcpy(w->profile, w->profile + w->horizon, w->horizon * sizeof *w->profile);
        memset(w->profile + w->horizon, 0, w->horizon * sizeof *w->profile);
        w->origin += w->horizon;
    }
    int32_t *profile = w->profile + (w->x - w->origin);
    for (;;) {
        int32_t rounds = (int32_t)shortest(w);
        if (rounds == NONE) return;
        int32_t i = w->bucket[rounds], prompt = w->in.prompt[i];
        if (w->blocked == i && w->x < w->blocked_until) return;
        int32_t wait = blocked_for(profile, prompt + 1 - (int32_t)w->in.capacity, rounds);
        if (wait > 0) {
            w->blocked = i, w->blocked_until = w->x + wait;
            return;
        }
        for (int32_t k = 0; k < rounds; k++) profile[k] += prompt + 1 + k;
        w->bucket[rounds] = w->bucket_next[i];
        if (w->bucket[rounds] == NONE) w->filled[rounds / 64] &= ~(1ull << rounds % 64);
        activate(w, i, prompt, records);
    }
}

/* ---- a batch */

typedef struct {
    int64_t prefill_tokens, prefill_context, prefill_kv; /* the last includes paused ones */
} Prefills;

INLINE void add_prefill(Prefills *p, int32_t kv, int32_t planned) {
    p->prefill_tokens += planned;
    p->prefill_context += planned > 0 ? kv : 0;
    p->prefill_kv += kv;
}

INLINE double duration(const World *w, Prefills p) {
    int64_t decodes = w->active - w->prefills, context = p.prefill_context + w->kv - p.prefill_kv;
    return w->in.constant + w->in.per_prefill * p.prefill_tokens + w->in.per_decode * decodes +
           w->in.per_context * (context + 1.0 * p.prefill_tokens + 1.0 * decodes);
}

INLINE void run_by_events(World *w, int records) {
    Prefills p = {0, 0, 0};
    for (int64_t k = 0; k < w->prefills; k++) {
        int32_t i = w->prefilling[k];
        add_prefill(&p, w->in.prompt[i] - w->r[i].left, w->r[i].planned);
    }
    double end = w->clock + duration(w, p), gap = end - w->last_end;
    int64_t usual = w->streaming, kept = 0, prefills = w->prefills;
    w->kv += w->active - prefills + p.prefill_tokens;
    if (records == EVENTS && usual > 0) note_gap(w, gap);
    int32_t i = w->calendar[w->x & w->mask];
    w->calendar[w->x & w->mask] = NONE;
    for (int32_t next; i != NONE; i = next) {
        next = w->r[i].cal_next;
        reach(w, i, end, records);
    }
    for (int64_t k = 0; k < prefills; k++) {
        i = w->prefilling[k];
        Request *r = &w->r[i];
        r->left -= r->planned;
        if (r->left > 0) {
            w->prefilling[kept++] = i;
            continue;
        }
        w->kv++, r->born = (int32_t)w->x;
        int64_t x = next_event(w, i, records);
        if (x == w->x) reach(w, i, end, records);
        else expect(w, i, x);
    }
    w->prefills = kept;
    if (records == EVENTS && usual > 0) count_gap(w, gap, usual);
    w->clock = w->last_end = end;
    w->x++;
}

INLINE void run_by_tokens(World *w) {
    Prefills p = {0, 0, 0};
    int64_t m = w->active, prefills = w->prefills, usual = 0, notes = 0;
    for (int64_t k = m - 1, seen = 0; seen < prefills; k--) {
        Slot *s = &w->slots[k];
        if (s->left > 0) add_prefill(&p, s->kv, s->planned), seen++;
    }
    double end = w->clock + duration(w, p), last_end = w->last_end, gap = end - last_end;
    w->kv += m - prefills + p.prefill_tokens;
    int32_t *restrict note = w->notes;
    for (Slot *restrict s = w->slots, *stop = s + m; s < stop; s++) {
        if (s->left > 0) {
            int32_t planned = s->planned;
            s->kv += planned, s->left -= planned;
            if (s->left > 0) continue;
            w->prefills--, w->kv++;
        }
        s->kv++;
        int32_t made = ++s->made;
        if (made > s->delivered && s->last == last_end) {
            usual++;
            s->last = end;
            if (gap > s->gap) s->gap = gap;
            if (made == s->target) note[notes++] = (int32_t)(s - w->slots);
        } else if (made > s->delivered) {
            note[notes++] = (int32_t)(s - w->slots);
        }
    }
    int64_t left = 0, from = m;
    for (int64_t j = 0; j < notes; j++) {
        Slot *s = &w->slots[note[j]];
        if (s->last != end) {
            deliver(w, s->id, s->last, &s->gap, end);
            s->last = end;
        }
        if (s->made < s->target) continue;
        w->in.gap[s->id] = s->gap;
        finish(w, s->id, end);
        if (left > 0) memmove(&w->slots[from - left], &w->slots[from], (note[j] - from) * sizeof *s);
        from = note[j] + 1, left++;
    }
    if (left > 0) memmove(&w->slots[from - left], &w->slots[from], (m - from) * sizeof *w->slots);
    w->active = m - left;
    if (usual > 0) count_gap(w, gap, usual);
    w->clock = w->last_end = end;
    w->x++;
}

INLINE int64_t play(World *w, int rule, int records) {
    while (w->done < w->in.n) {
        if (w->active == 0 && w->done == w->arrived && w->in.arrival[w->arrived] > w->clock)
            w->clock = w->in.arrival[w->arrived];
        for (; w->arrived < w->in.n && w->in.arrival[w->arrived] <= w->clock; w->arrived++)
            if (rule == MC_SF) push(w, (int32_t)w->arrived);
        if (rule == MC_SF) decide_mc_sf(w, records);
        else if (rule == SARATHI) decide_sarathi(w, records);
        else decide_fcfs(w, records);
        if (records == TOKENS) run_by_tokens(w);
        else run_by_events(w, records);
    }
    return w->x;
}

/* Play to the end; returns the number of iterations. */
int64_t floor_play(World *w, int rule, int records) {
    switch (3 * rule + records) {
#define CASE(rule, records) case 3 * rule + records: return play(w, rule, records);
        CASE(MC_SF, FINISH) CASE(MC_SF, EVENTS) CASE(MC_SF, TOKENS)
        CASE(SARATHI, FINISH) CASE(SARATHI, EVENTS) CASE(SARATHI, TOKENS)
        CASE(FCFS, FINISH) CASE(FCFS, EVENTS) CASE(FCFS, TOKENS)
    }
    return NONE;
}
