/* Bulk copies of boxes and the barriers in shared memory that count their bytes (mbarrier): a part of cuda_emulator.c,
   which has threads, memory and its shadow.

   A copy lands as late as it may: when no thread can go on otherwise. Who may use what it brought, or overwrite what
   others read, is known from the phases of barriers that a thread has waited for (`known`). */

typedef struct Mbarrier {
    unsigned char *at;
    int count, pending, phase;
    int64_t bytes;
    int32_t maker;
    int owner; /* the block of the cluster whose it is */
    uint32_t made, made_tick, clock[COLUMNS], done[COLUMNS];
} Mbarrier;

/* what the emulated driver encodes: an array and boxes of it, the innermost dimension first */
typedef struct {
    uint64_t address;
    uint32_t size, rank, swizzle, unused, shape[5], sides[5];
    uint64_t steps[5];
} Map;

typedef struct Landing {
    struct Landing *next;
    unsigned char *to, *data;
    int64_t size;
    int swizzle, into; /* the block of the cluster whose memory it goes to */
    Mbarrier *barrier;
} Landing;

static Mbarrier mbarriers[MOST_BARRIERS];
static int mbarrier_count;
static Landing *landings;

void emu_mbarrier_init(unsigned char *p, int count)
{
    Region *r = touched(p, 8, 8, SHARED, "writes");
    note_write(r, p - r->base, 8);
    if (mbarrier_count == MOST_BARRIERS)
        fail("the emulator has no more barriers in shared memory");
    Mbarrier *m = &mbarriers[mbarrier_count++];
    memset(m, 0, sizeof *m);
    m->at = p, m->count = m->pending = count, m->owner = resident;
    m->maker = unit_of(current), m->made = now, m->made_tick = tick;
}

static Mbarrier *mbarrier_at(unsigned char *p)
{
    for (int i = 0; i < mbarrier_count; i++)
        if (mbarriers[i].at == p && mbarriers[i].owner == resident) {
            if (unordered(mbarriers[i].maker, mbarriers[i].made))
                fail("an mbarrier is used, and no barrier stands between that and its initialization");
            return &mbarriers[i];
        }
    fail("an mbarrier is used that nobody has initialized");
    return NULL;
}

static void settle(Mbarrier *m)
{
    if (m->pending != 0 || m->bytes != 0)
        return;
    m->phase ^= 1, m->pending = m->count;
    memcpy(m->done, m->clock, sizeof m->done);
    memset(m->clock, 0, sizeof m->clock);
}

/* one arrival, which says that so many bytes will come; what the thread has done so far is over for those that wait */
void emu_mbarrier_arrive(unsigned char *p, int bytes)
{
    Mbarrier *m = mbarrier_at(p);
    if (m->pending == 0)
        fail("more threads arrive at an mbarrier than it counts, or bytes of its phase are missing");
    learn(m->clock, known[current]);
    m->clock[current / LANES] = ++now;
    m->bytes += bytes, m->pending--;
    settle(m);
}

/* an address in another block of the cluster, which only that can tell where it is */
enum { ELSEWHERE = 48 };

unsigned char *emu_mapa(unsigned char *p, int rank)
{
    if (rank < 0 || rank >= cluster)
        fail("there is no such block in the cluster");
    return (unsigned char *)((uint64_t)p | (uint64_t)(rank + 1) << ELSEWHERE);
}

/* nobody touches the memory of a block whose threads have all ended */
static void still_there(int which)
{
    for (int i = which * per_block; i < (which + 1) * per_block; i++)
        if (threads[i].state != DONE)
            return;
    fail("the memory of a block of the cluster is used that has ended");
}

void emu_mbarrier_arrive_at(unsigned char *p)
{
    int which = (int)((uint64_t)p >> ELSEWHERE) - 1;
    if (which < 0)
        fail("an address is none in a cluster");
    still_there(which);
    look_at(which);
    emu_mbarrier_arrive((unsigned char *)((uint64_t)p & (((uint64_t)1 << ELSEWHERE) - 1)), 0);
    look_at(current / per_block);
}

int emu_mbarrier_wait(unsigned char *p, int parity)
{
    Mbarrier *m = mbarrier_at(p);
    Thread *t = &threads[current];
    while (m->phase == (parity & 1)) {
        t->site = site, t->waits = m, t->parity = parity & 1;
        leave(AT_MBARRIER);
    }
    learn(known[current], m->done);
    return 1;
}

static unsigned char *swizzled(unsigned char *p, int span)
{
    uint64_t at = (uint64_t)(p - shared_start);
    return shared_start + (span ? at ^ (at >> 7 & (uint64_t)(span / 16 - 1)) << 4 : at);
}

/* the bytes of a box, zero beyond the array */
static unsigned char *boxed(const Map *m, const int *start, int64_t size)
{
    unsigned char *data = calloc((size_t)size, 1);
    int64_t row = (int64_t)m->sides[0] * m->size;
    for (int64_t n = 0; n * row < size; n++) {
        int64_t rest = n, low = start[0] < 0 ? -start[0] : 0, high = (int64_t)m->shape[0] - start[0], inside = 1;
        const unsigned char *from = (const unsigned char *)m->address;
        for (uint32_t d = 1; d < m->rank; d++) {
            int64_t at = start[d] + rest % m->sides[d];
            rest /= m->sides[d];
            inside &= at >= 0 && at < m->shape[d];
            from += at * (int64_t)m->steps[d - 1];
        }
        high = high < m->sides[0] ? high : m->sides[0];
        if (!inside || high <= low)
            continue;
        from += (start[0] + low) * m->size;
        Region *r = touched(from, (int)((high - low) * m->size), 1, GLOBAL, "reads");
        note_read(r, from - r->base, (int)((high - low) * m->size));
        memcpy(data + n * row + low * m->size, from, (size_t)((high - low) * m->size));
    }
    return data;
}

static void copy_to(unsigned char *to, unsigned char *p, const Map *map, int rank, const int *start)
{
    Mbarrier *b = mbarrier_at(p);
    if (b->made_tick >= threads[(b->maker - 1) % thread_count].fence_tick)
        fail("a bulk copy uses an mbarrier that was initialized without a fence for this way of using it");
    if ((int)map->rank != rank)
        fail("the tensor map of a bulk copy is one of another number of dimensions");
    int64_t size = map->size;
    for (int d = 0; d < rank; d++)
        size *= map->sides[d];
    Region *r = touched(to, (int)size, 128, SHARED, "copies to");
    for (int64_t i = 0; i < size; i++) {
        int64_t at = swizzled(to + i, (int)map->swizzle) - r->base;
        Shadow *s = &r->shadow[at];
        if (s->writer > 0 && s->write_tick > threads[(s->writer - 1) % thread_count].fence_tick)
            fail_at(r, at, "copies to", ", which was written without a fence for this way of writing");
        note_write(r, at, 1);
        s->flags |= COPYING;
    }
    Landing *l = malloc(sizeof *l);
    *l = (Landing){landings, to, boxed(map, start, size), size, (int)map->swizzle, resident, b};
    landings = l;
}

/* to the block's own memory, or to that of all blocks of the cluster whose bit is set */
void emu_bulk(unsigned char *to, unsigned char *p, const Map *map, int rank, const int *start, int mask, int several)
{
    if (several && (mask == 0 || mask >> cluster))
        fail("a bulk copy goes to blocks that the cluster has not");
    for (int c = 0; c < cluster; c++)
        if (several ? mask >> c & 1 : c == current / per_block) {
            still_there(c);
            look_at(c);
            copy_to(to, p, map, rank, start);
        }
    look_at(current / per_block);
}

/* let one copy land: the first that was begun, or the last one; whether there was any */
static int land(int last)
{
    Landing **l = &landings;
    while (*l != NULL && !last && (*l)->next != NULL)
        l = &(*l)->next;
    Landing *done = *l;
    if (done == NULL)
        return 0;
    Mbarrier *m = done->barrier;
    look_at(done->into);
    int column = LANE_WARPS + (int)(m - mbarriers);
    Region *r = region_of(done->to, (int)done->size, SHARED, "copies to");
    now++;
    for (int64_t i = 0; i < done->size; i++) {
        unsigned char *p = swizzled(done->to + i, done->swizzle);
        Shadow *s = &r->shadow[p - r->base];
        *p = done->data[i];
        s->flags = (uint8_t)((s->flags & ~COPYING) | WRITTEN);
        s->writer = -1 - (int)(m - mbarriers), s->write_time = now, s->write_tick = ++tick;
    }
    m->clock[column] = ++now;
    m->bytes -= done->size;
    *l = done->next;
    free(done->data);
    free(done);
    if (m->pending == 0 && m->bytes < 0) {
        char text[160];
        snprintf(text, sizeof text, "%lld bytes more come than an mbarrier expects", (long long)-m->bytes);
        fail(text);
    }
    settle(m);
    return 1;
}

/* how much says that an mbarrier, and none that others are stuck at, is the one where something is missing */
static int suspicion(const Mbarrier *m) { return 2 * (m->bytes != 0) + (m->pending < m->count); }

/* let threads go on whose phase is over; whether there are any, and in `waiting` one that still waits */
static int wake(int *waiting)
{
    int woken = 0;
    *waiting = -1;
    for (int i = 0; i < thread_count; i++) {
        if (threads[i].state != AT_MBARRIER)
            continue;
        if (threads[i].waits->phase != threads[i].parity)
            threads[i].state = READY, woken = 1;
        else if (*waiting < 0 || suspicion(threads[i].waits) > suspicion(threads[*waiting].waits))
            *waiting = i;
    }
    return woken;
}

static void stuck(int thread)
{
    const Mbarrier *m = threads[thread].waits;
    snprintf(message, sizeof message,
             "%s waits for a phase of an mbarrier that does not end: %d of %d arrivals and %lld bytes are missing",
             name_of(unit_of(thread)), m->pending, m->count, (long long)m->bytes);
    failed_site = threads[thread].site;
}

static void forget_bulk(void)
{
    while (landings != NULL) {
        Landing *l = landings;
        landings = l->next;
        free(l->data);
        free(l);
    }
    mbarrier_count = 0;
}
