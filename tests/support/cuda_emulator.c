/* The threads of a block as fibers, for kernels whose LLVM IR was compiled for this processor (cuda_emulator.py).

   Every access to global and shared memory is asked for here first. A byte has a shadow: who wrote and who read it
   last, and when, so that two accesses that no barrier separates are found whichever of them runs
   first. Copies that were begun are done when they are waited for, and not before. */
#define _XOPEN_SOURCE 700
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { GLOBAL = 1, SHARED = 3 };
/* of a byte; who read it: several of one warp, of several warps, of several blocks */
enum { WRITTEN = 1, COPYING = 2, SEVERAL = 4, WARPS = 8, BLOCKS = 16 };
/* what memory is at first */
enum { BY_NOBODY, BEFORE, ONLY_READ };
enum { READY, AT_BARRIER, AT_MBARRIER, AT_CLUSTER, IN_WARP, IN_GROUP, DONE };
/* blocks of a cluster: the one whose shared memory is where kernels look for it is `resident` */
enum { MOST_BLOCKS = 8 };
enum { MOST_REGIONS = 64, MOST_THREADS = 1024, LANES = 32, GROUP = 128, STACK = 1 << 20, MOST_FLYING = 64 };
/* whose actions a thread may know to be over: those of warps, and of copies that count at one mbarrier */
enum { LANE_WARPS = MOST_THREADS / LANES, MOST_BARRIERS = 64, COLUMNS = LANE_WARPS + MOST_BARRIERS };

typedef struct {
    int32_t writer, reader;
    uint32_t write_time, read_time, write_tick;
    uint8_t flags;
} Shadow;

typedef struct {
    char name[64];
    unsigned char *base;
    int64_t size;
    int space;
    Shadow *shadow; /* none of memory that is only read */
    unsigned char *marks; /* of each byte, whether the kernel wrote it; none if nobody asks */
    uint32_t *reads; /* of shared memory: when each warp read a byte last, 0 for never */
    Shadow *shadow_of[MOST_BLOCKS]; /* of shared memory, for each block of a cluster */
    uint32_t *reads_of[MOST_BLOCKS];
} Region;

struct Mbarrier;

typedef struct Copy {
    struct Copy *next;
    unsigned char *to;
    const unsigned char *from;
    int size, group;
} Copy;

/* a product of a group of warps that is not waited for: descriptors, columns, how many groups were closed before, whether
   rows of the second factor go along its columns, and whether the first factor is in registers */
typedef struct {
    uint64_t factors[2];
    int columns, group, turned, held;
} Flying;

typedef struct {
    ucontext_t context;
    char *stack;
    int state, site, operation, count, groups;
    int meets; /* the barrier at which it waits for so many threads: 0 is that of all */
    uint32_t words[16], result[4];
    /* of a product of a group: sums and results, descriptors; those that run, and when a fence was last */
    const float *sums;
    float *group_result;
    uint64_t factors[2];
    const uint32_t *held; /* the thread's part of the first factor, where it is in registers */
    int turned;           /* 1: rows of the second factor go along its columns, 2: those of the first along its rows */
    Flying products[MOST_FLYING];
    int flying, commits;
    struct Mbarrier *waits;
    int parity;
    uint32_t fence_tick;
    const unsigned char *address;
    Copy *copies;
} Thread;

static Region regions[MOST_REGIONS];
static int region_count;
static Thread threads[MOST_THREADS];
/* threads and warps are those of all blocks of a cluster, one block after the other */
static int grid[3], block[3], at_block[3], thread_count, warps, current, site;
static int cluster = 1, per_block, resident;
static unsigned char *kept[MOST_BLOCKS];
static int64_t shared_bytes;
/* time goes on when threads meet; when those of the block, and of each warp, met last */
static uint32_t tick; /* goes on with every write and fence */
static unsigned char *shared_start;
static uint32_t now, block_met, warp_met[LANE_WARPS];
/* before when what each warp, and each mbarrier's copies, did is over for a thread */
static uint32_t known[MOST_THREADS][COLUMNS];
static ucontext_t scheduler;
static char message[512];
static int failed_site;
/* how often `ldmatrix` had to read once more because rows lie in the same banks */
static long conflicts;
static void (*entry)(void *);
static void *arguments;

static void leave(int state)
{
    threads[current].state = state;
    swapcontext(&threads[current].context, &scheduler);
}

static const char *name_of(int32_t unit)
{
    static char text[2][96];
    static int turn;
    turn ^= 1;
    int t = (unit - 1) % thread_count, b = (unit - 1) / thread_count * cluster + t / per_block;
    t %= per_block;
    snprintf(text[turn], sizeof text[turn], "thread (%d, %d, %d) of block (%d, %d, %d)", t % block[0],
             t / block[0] % block[1], t / block[0] / block[1], b % grid[0], b / grid[0] % grid[1],
             b / grid[0] / grid[1]);
    return text[turn];
}

static int32_t unit_of(int thread)
{
    int b = (at_block[2] * grid[1] + at_block[1]) * grid[0] + at_block[0];
    return b / cluster * thread_count + thread + 1;
}

/* ends the run; from the scheduler too, which goes on where it last let a thread run */
static void fail(const char *text)
{
    if (!message[0]) {
        snprintf(message, sizeof message, "%s", text);
        failed_site = site;
    }
    leave(DONE);
}

/* let the shared memory of another block of the cluster be where all look for it */
static void look_at(int which)
{
    if (which == resident)
        return;
    memcpy(kept[resident], shared_start, (size_t)shared_bytes);
    memcpy(shared_start, kept[which], (size_t)shared_bytes);
    resident = which;
    for (int i = 0; i < region_count; i++)
        if (regions[i].space == SHARED)
            regions[i].shadow = regions[i].shadow_of[which], regions[i].reads = regions[i].reads_of[which];
}

static void fail_at(const Region *r, int64_t at, const char *what, const char *why)
{
    char text[512];
    snprintf(text, sizeof text, "%s %s byte %lld of %s%s", name_of(unit_of(current)), what, (long long)at, r->name, why);
    fail(text);
}

static Region *region_of(const unsigned char *p, int size, int space, const char *what)
{
    Region *near = NULL;
    for (int i = 0; i < region_count; i++) {
        Region *r = &regions[i];
        if (r->space != space)
            continue;
        if (p >= r->base && p + size <= r->base + r->size)
            return r;
        if (near == NULL || llabs((long long)(p - r->base)) < llabs((long long)(p - near->base)))
            near = r;
    }
    if (near != NULL)
        fail_at(near, p - near->base, what, ", which is out of bounds");
    fail("an access to memory that there is none of");
    return NULL;
}

/* what is over there is over here too */
static void learn(uint32_t *to, const uint32_t *from)
{
    for (int i = 0; i < COLUMNS; i++)
        to[i] = from[i] > to[i] ? from[i] : to[i];
}

static int same_block(int32_t a, int32_t b) { return (a - 1) / thread_count == (b - 1) / thread_count; }

static int same_warp(int32_t a, int32_t b)
{
    return same_block(a, b) && (a - 1) % thread_count / LANES == (b - 1) % thread_count / LANES;
}

/* whether what another unit did then may happen at the same time as what this one does */
static int unordered(int32_t other, uint32_t when)
{
    int32_t me = unit_of(current);
    if (other == 0 || other == me)
        return 0;
    if (other < 0) /* a bulk copy */
        return when >= known[current][LANE_WARPS - 1 - other];
    if (!same_block(other, me))
        return 1;
    return when >= (same_warp(other, me) ? warp_met[current / LANES] : known[current][(other - 1) % thread_count / LANES]);
}

static void race(Region *r, int64_t at, const char *what, const char *did, int32_t other)
{
    char why[160];
    if (other < 0)
        fail_at(r, at, what, ", whose copy has not been waited for");
    snprintf(why, sizeof why, ", which %s %s without a barrier between", name_of(other), did);
    fail_at(r, at, what, why);
}

static void note_read(Region *r, int64_t from, int size)
{
    int32_t me = unit_of(current);
    for (int64_t i = from; r->shadow != NULL && i < from + size; i++) {
        Shadow *s = &r->shadow[i];
        if (s->flags & COPYING)
            fail_at(r, i, "reads", ", whose copy has not been waited for");
        if (!(s->flags & WRITTEN))
            fail_at(r, i, "reads", ", which nobody has written");
        if (unordered(s->writer, s->write_time))
            race(r, i, "reads", "writes", s->writer);
        int here = s->reader != 0 && same_block(s->reader, me);
        if (s->reader != 0 && !here)
            s->flags |= BLOCKS;
        if (!here || s->read_time < block_met)
            s->flags &= (uint8_t)~(SEVERAL | WARPS);
        else if (!same_warp(s->reader, me))
            s->flags |= WARPS;
        else if (s->read_time < warp_met[current / LANES])
            s->flags &= (uint8_t)~SEVERAL;
        else if (s->reader != me)
            s->flags |= SEVERAL;
        s->reader = me;
        s->read_time = now;
        if (r->reads != NULL)
            r->reads[i * warps + current / LANES] = now;
    }
}

/* whether somebody else may be reading a byte: it is known who did last, and from how far apart others did */
static int being_read(const Region *r, int64_t at)
{
    const Shadow *s = &r->shadow[at];
    int32_t me = unit_of(current);
    if (s->reader == 0)
        return 0;
    for (int w = 0; r->reads != NULL && w < warps; w++) {
        uint32_t when = r->reads[at * warps + w];
        if (w != current / LANES && when != 0 && when >= known[current][w])
            return 1;
    }
    if (r->reads != NULL && !same_warp(s->reader, me))
        return 0;
    if ((s->flags & BLOCKS) || !same_block(s->reader, me))
        return 1;
    if (s->read_time < block_met)
        return 0;
    if ((s->flags & WARPS) || !same_warp(s->reader, me))
        return 1;
    return s->read_time >= warp_met[current / LANES] && ((s->flags & SEVERAL) || s->reader != me);
}

static void note_write(Region *r, int64_t from, int size)
{
    if (r->shadow == NULL)
        fail_at(r, from, "writes", ", which is only read");
    for (int64_t i = from; i < from + size; i++) {
        Shadow *s = &r->shadow[i];
        if (s->flags & COPYING)
            fail_at(r, i, "writes", ", whose copy has not been waited for");
        if (unordered(s->writer, s->write_time))
            race(r, i, "writes", "writes too", s->writer);
        if (being_read(r, i))
            fail_at(r, i, "writes", ", which others read without a barrier between");
        s->writer = unit_of(current);
        s->write_time = now;
        s->write_tick = ++tick;
        s->flags |= WRITTEN;
    }
}

static Region *touched(const unsigned char *p, int size, int align, int space, const char *what)
{
    Region *r = region_of(p, size, space, what);
    if ((uintptr_t)p % (unsigned)align)
        fail_at(r, p - r->base, what, ", which is not aligned");
    return r;
}

/* ---- what compiled kernels call ---- */

void emu_site(int at) { site = at; }

void emu_load(const unsigned char *p, int size, int align, int space, int at)
{
    site = at;
    Region *r = touched(p, size, align, space, "reads");
    note_read(r, p - r->base, size);
}

void emu_store(unsigned char *p, int size, int align, int space, int at)
{
    site = at;
    Region *r = touched(p, size, align, space, "writes");
    note_write(r, p - r->base, size);
}

int emu_register(int which)
{
    int place = current % per_block;
    switch (which) {
    case 0: return place % block[0];
    case 1: return place / block[0] % block[1];
    case 2: return place / block[0] / block[1];
    case 3: return at_block[0] + current / per_block;
    default: return at_block[which - 3];
    }
}

/* 2^x without denormal numbers */
float emu_exp2(float x)
{
    float found = exp2f(x);
    return found < FLT_MIN ? 0.0f : found;
}

void emu_barrier(void)
{
    if (threads[current].flying)
        fail("a product of a group of warps is not waited for");
    threads[current].site = site, threads[current].meets = 0;
    leave(AT_BARRIER);
}

/* one of the other barriers, for some threads of the block */
void emu_barrier_of(int number, int count)
{
    if (number < 1 || number > 15 || count % LANES || count > per_block)
        fail("there is no such barrier");
    threads[current].site = site, threads[current].meets = number, threads[current].count = count;
    leave(AT_BARRIER);
}

/* the barrier of all threads of a cluster: to arrive says nothing that waiting does not */
void emu_cluster_wait(void)
{
    if (threads[current].flying)
        fail("a product of a group of warps is not waited for");
    threads[current].site = site;
    leave(AT_CLUSTER);
}

void emu_copy(unsigned char *to, const unsigned char *from, int size)
{
    Region *source = touched(from, size, size, GLOBAL, "reads"), *target = touched(to, size, size, SHARED, "writes");
    note_read(source, from - source->base, size);
    note_write(target, to - target->base, size);
    for (int i = 0; i < size; i++)
        target->shadow[to - target->base + i].flags |= COPYING;
    Thread *t = &threads[current];
    Copy *c = malloc(sizeof *c);
    *c = (Copy){t->copies, to, from, size, t->groups};
    t->copies = c;
}

void emu_commit(void) { threads[current].groups++; }

void emu_wait(int left)
{
    Thread *t = &threads[current];
    for (Copy **c = &t->copies; *c != NULL;) {
        Copy *done = *c;
        if (done->group >= t->groups - left) {
            c = &done->next;
            continue;
        }
        Region *r = region_of(done->to, done->size, SHARED, "writes");
        memcpy(done->to, done->from, (size_t)done->size);
        for (int i = 0; i < done->size; i++) {
            Shadow *s = &r->shadow[done->to - r->base + i];
            s->flags = (uint8_t)((s->flags & ~COPYING) | WRITTEN);
            s->writer = unit_of(current);
            s->write_time = now;
            s->write_tick = ++tick;
        }
        *c = done->next;
        free(done);
    }
}

#include "cuda_matrices.h"

#include "cuda_bulk.h"

/* ---- running ---- */

/* memory; `written`: by nobody, before the kernel runs, or then and never again */
int emu_memory(const char *name, void *base, int64_t size, int space, int written, unsigned char *marks)
{
    if (region_count == MOST_REGIONS)
        return 0;
    Region *r = &regions[region_count++];
    snprintf(r->name, sizeof r->name, "%s", name);
    r->base = base, r->size = size, r->space = space, r->marks = marks;
    for (int c = space == SHARED ? cluster - 1 : 0; c >= 0; c--) {
        r->shadow_of[c] = r->shadow = written == ONLY_READ ? NULL : calloc((size_t)size + 1, sizeof *r->shadow);
        r->reads_of[c] = r->reads = space == SHARED ? calloc((size_t)size + 1, LANE_WARPS * sizeof *r->reads) : NULL;
    }
    for (int64_t i = 0; written == BEFORE && i < size; i++)
        r->shadow[i].flags = WRITTEN;
    return 1;
}

static void begin(void)
{
    entry(arguments);
    if (threads[current].flying)
        fail("a product of a group of warps is not waited for");
    if (threads[current].copies != NULL)
        fail("copies that a thread began are never waited for");
    leave(DONE);
}

/* let all threads of a warp that stand at one instruction go on; whether some did */
static int warp_step(int first)
{
    int here = 0, last = first + LANES < thread_count ? first + LANES : thread_count;
    for (int i = first; i < last; i++)
        here += threads[i].state == IN_WARP;
    if (here == 0)
        return 0;
    for (int i = first; i < first + LANES; i++)
        if (i >= thread_count || threads[i].state != IN_WARP || threads[i].site != threads[first].site) {
            current = first, site = threads[first].site;
            snprintf(message, sizeof message, "the lanes of a warp do not come to the same instruction together: %s",
                     name_of(unit_of(i < thread_count ? i : first)));
            failed_site = site;
            return 0;
        }
    current = first;
    if (threads[first].operation <= LDMATRIX_TRANSPOSED)
        load_matrices(first);
    else if (threads[first].operation == WARP_BARRIER) {
        warp_met[first / LANES] = ++now;
        for (int i = first + 1; i < last; i++)
            learn(known[first], known[i]);
        for (int i = first + 1; i < last; i++)
            learn(known[i], known[first]);
    } else if (threads[first].operation == SHUFFLE)
        shuffle(first);
    else
        multiply(first);
    for (int i = first; i < last; i++)
        threads[i].state = READY;
    return 1;
}

static void met(void)
{
    block_met = ++now;
    for (int i = 0; i < LANE_WARPS; i++)
        warp_met[i] = known[0][i] = now;
    for (int i = 1; i < thread_count; i++)
        learn(known[0], known[i]);
    for (int i = 1; i < thread_count; i++)
        memcpy(known[i], known[0], sizeof known[0]);
}

/* the same for the threads of a block that have come to one of the other barriers, if it is as many as it waits for; and
   for those of one block of several */
static int some_meet(void)
{
    for (int first = 0; first < thread_count; first++) {
        int number = threads[first].meets, come = 0, end = (first / per_block + 1) * per_block;
        if (threads[first].state != AT_BARRIER || (number == 0 && cluster == 1))
            continue;
        for (int i = first; i < end; i++)
            come += threads[i].state == AT_BARRIER && threads[i].meets == number;
        if (come < (number ? threads[first].count : per_block))
            continue;
        static uint32_t all[COLUMNS];
        memset(all, 0, sizeof all);
        now++;
        for (int i = first; i < end; i++)
            if (threads[i].state == AT_BARRIER && threads[i].meets == number)
                learn(all, known[i]);
        for (int i = first; i < end; i++)
            if (threads[i].state == AT_BARRIER && threads[i].meets == number)
                all[i / LANES] = warp_met[i / LANES] = now;
        for (int i = first; i < end; i++)
            if (threads[i].state == AT_BARRIER && threads[i].meets == number)
                memcpy(known[i], all, sizeof all), threads[i].state = READY;
        return 1;
    }
    return 0;
}

/* the same for all threads of a cluster */
static int cluster_meets(void)
{
    for (int i = 0; i < thread_count; i++)
        if (threads[i].state != AT_CLUSTER)
            return 0;
    for (int i = 0; i < thread_count; i++)
        threads[i].state = READY;
    met();
    return 1;
}

static int meet(void)
{
    int waiting = 0, odd = -1;
    for (int i = 0; i < thread_count; i++) {
        if (threads[i].state == AT_BARRIER)
            waiting++;
        if (threads[i].state != threads[0].state || (threads[i].state == AT_BARRIER && threads[i].site != threads[0].site) || threads[i].meets)
            odd = odd < 0 ? i : odd;
    }
    if (waiting == 0)
        return 0;
    if (odd >= 0) {
        site = threads[threads[0].state == AT_BARRIER ? 0 : odd].site;
        snprintf(message, sizeof message, "not all threads come to the same barrier: %s and %s do not",
                 name_of(unit_of(0)), name_of(unit_of(odd)));
        failed_site = site;
        return 0;
    }
    for (int i = 0; i < thread_count; i++)
        threads[i].state = READY;
    met();
    return 1;
}

static void run_block(int backwards)
{
    for (int c = cluster - 1; c >= 0; c--) {
        look_at(c);
        for (int i = 0; i < region_count; i++)
            if (regions[i].space == SHARED) {
                memset(regions[i].base, 0xFF, (size_t)regions[i].size);
                memset(regions[i].shadow, 0, (size_t)regions[i].size * sizeof(Shadow));
                memset(regions[i].reads, 0, (size_t)regions[i].size * (size_t)warps * sizeof(uint32_t));
            }
    }
    forget_bulk();
    for (int i = 0; i < thread_count; i++) {
        Thread *t = &threads[i];
        if (t->stack == NULL)
            t->stack = malloc(STACK);
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = t->stack;
        t->context.uc_stack.ss_size = STACK;
        t->context.uc_link = &scheduler;
        t->state = READY, t->groups = 0, t->copies = NULL, t->flying = t->commits = 0, t->fence_tick = 0;
        makecontext(&t->context, begin, 0);
    }
    for (;;) {
        for (int n = 0; n < thread_count; n++) {
            int i = backwards ? thread_count - 1 - n : n;
            if (threads[i].state != READY)
                continue;
            current = i;
            look_at(i / per_block);
            swapcontext(&scheduler, &threads[i].context);
            if (message[0])
                return;
        }
        int went_on = 0;
        for (int i = 0; i < thread_count; i += LANES) {
            int ready = 1;
            look_at(i / per_block);
            for (int j = i; j < i + LANES && j < thread_count; j++)
                ready &= threads[j].state != READY;
            went_on |= ready && warp_step(i);
            if (ready && i % GROUP == 0)
                went_on |= group_step(i);
            if (message[0])
                return;
        }
        int waiting;
        if (went_on || some_meet() || wake(&waiting))
            continue;
        if (waiting >= 0) {
            current = waiting, site = threads[waiting].site;
            if (!land(backwards))
                stuck(waiting);
            if (message[0])
                return;
            continue;
        }
        if (cluster_meets() || meet())
            continue;
        if (landings != NULL && !message[0])
            snprintf(message, sizeof message, "bulk copies are never waited for");
        for (int i = 0; i < thread_count && !message[0]; i++)
            if (threads[i].state != DONE) {
                failed_site = threads[i].site;
                snprintf(message, sizeof message, "%s waits for others that do not come", name_of(unit_of(i)));
            }
        return;
    }
}

/* all clusters of blocks, or `some` of them, so many as `count` says */
const char *emu_run(void (*kernel)(void *), void *args, const int *blocks, const int *size, int backwards, const int *some,
                    int count)
{
    entry = kernel, arguments = args, message[0] = 0, failed_site = -1, conflicts = 0;
    memcpy(grid, blocks, sizeof grid);
    memcpy(block, size, sizeof block);
    per_block = block[0] * block[1] * block[2], thread_count = per_block * cluster;
    warps = (thread_count + LANES - 1) / LANES;
    if (thread_count > MOST_THREADS || grid[0] % cluster || (cluster > 1 && per_block % LANES))
        return "there are no clusters of such blocks";
    count = some == NULL ? grid[0] * grid[1] * grid[2] / cluster : count;
    for (int b = 0; b < count && !message[0]; b++) {
        int n = backwards ? count - 1 - b : b, i = (some == NULL ? n : some[n]) * cluster;
        at_block[0] = i % grid[0], at_block[1] = i / grid[0] % grid[1], at_block[2] = i / grid[0] / grid[1];
        memset(known, 0, sizeof known);
        met();
        run_block(backwards);
    }
    for (int i = 0; i < region_count; i++) {
        for (int64_t j = 0; regions[i].marks != NULL && j < regions[i].size; j++)
            regions[i].marks[j] = regions[i].shadow[j].writer != 0;
        for (int c = 0; c < (regions[i].space == SHARED ? cluster : 1); c++)
            free(regions[i].shadow_of[c]), free(regions[i].reads_of[c]);
    }
    forget_bulk();
    region_count = 0;
    return message;
}

/* where shared memory begins: an address in a descriptor is one from here on; how many bytes of it each of so many
   blocks of a cluster uses */
void emu_shared(void *start, int64_t size, int blocks)
{
    shared_start = start, shared_bytes = size, cluster = blocks, resident = 0;
    for (int c = 0; c < MOST_BLOCKS; c++) {
        free(kept[c]);
        kept[c] = c < blocks ? calloc((size_t)size + 1, 1) : NULL;
    }
}

int emu_failed_site(void) { return failed_site; }

long emu_conflicts(void) { return conflicts; }
