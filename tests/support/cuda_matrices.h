/* Instructions that lanes run together, on matrices that they hold in parts or that lie in shared memory: a part of
   cuda_emulator.c, which has threads, memory and its shadow. */
/* instructions of a warp: each lane leaves its operands, the scheduler does the work when all have come */
enum { LDMATRIX, LDMATRIX_TRANSPOSED, MMA_BF16, MMA_F16, MMA_S8, WARP_BARRIER, SHUFFLE };

void emu_ldmatrix(const unsigned char *p, int count, int transposed, uint32_t *result)
{
    Thread *t = &threads[current];
    t->site = site, t->address = p, t->count = count;
    t->operation = transposed ? LDMATRIX_TRANSPOSED : LDMATRIX;
    leave(IN_WARP);
    memcpy(result, t->result, sizeof t->result);
}

void emu_mma(int kind, const uint32_t *words, uint32_t *result)
{
    Thread *t = &threads[current];
    t->site = site, t->operation = MMA_BF16 + kind;
    memcpy(t->words, words, 10 * sizeof *words);
    leave(IN_WARP);
    memcpy(result, t->result, sizeof t->result);
}

void emu_warp_barrier(void)
{
    threads[current].site = site, threads[current].operation = WARP_BARRIER;
    leave(IN_WARP);
}

/* the number of the lane whose own number differs in these bits */
/* the word of the lane so far apart (xor), or of the one of this number */
uint32_t emu_shuffle(uint32_t x, int lane, int by_number)
{
    Thread *t = &threads[current];
    t->site = site, t->operation = SHUFFLE;
    t->count = by_number ? lane : lane ^ (current % LANES);
    if (t->count < 0 || t->count >= LANES)
        fail("a shuffle asks a lane that there is none of");
    t->words[0] = x;
    leave(IN_WARP);
    return t->result[0];
}

static void shuffle(int first)
{
    for (int i = 0; i < LANES; i++)
        threads[first + i].result[0] = threads[first + threads[first + i].count].words[0];
}

/* a group of 8 lanes reads 8 rows of 16 bytes at once if these lie in different 16ths of 128 bytes */
static void count_conflicts(int first)
{
    int rows[8] = {0}, most = 0;
    for (int i = 0; i < 8; i++) {
        int place = (int)((uintptr_t)threads[first + i].address / 16 % 8);
        most = ++rows[place] > most ? rows[place] : most;
    }
    conflicts += most - 1;
}

static void load_matrices(int first)
{
    Thread *lane = &threads[first];
    for (int m = 0; m < lane->count; m++)
        count_conflicts(first + 8 * m);
    for (int i = 0; i < 8 * lane->count; i++) {
        current = first + i;
        site = threads[current].site;
        Region *r = touched(threads[current].address, 16, 16, SHARED, "reads");
        note_read(r, threads[current].address - r->base, 16);
    }
    for (int i = 0; i < LANES; i++)
        for (int m = 0; m < lane->count; m++) {
            uint16_t half[2];
            for (int e = 0; e < 2; e++) {
                int row = i / 4, column = 2 * (i % 4) + e;
                if (lane->operation == LDMATRIX_TRANSPOSED)
                    row = column, column = i / 4;
                memcpy(&half[e], threads[first + 8 * m + row].address + 2 * column, 2);
            }
            lane[i].result[m] = half[0] | (uint32_t)half[1] << 16;
        }
}

/* ---- products of groups of four warps, on matrices in shared memory ---- */

void emu_proxy_fence(void) { threads[current].fence_tick = ++tick; }

void emu_group_commit(void) { threads[current].commits++; }

static void read_factors(const Flying *f, uint32_t until);

/* products read their factors until they are waited for */
void emu_group_wait(int left)
{
    Thread *t = &threads[current];
    int kept = 0;
    for (int i = 0; i < t->flying; i++) {
        if (t->products[i].group >= t->commits - left)
            t->products[kept++] = t->products[i];
        else if (current % LANES == 0)
            read_factors(&t->products[i], now);
    }
    t->flying = kept;
}

void emu_group_product(int half, int columns, int turned, uint64_t x, const uint32_t *held, uint64_t w, const float *sums,
                       float *result)
{
    Thread *t = &threads[current];
    t->site = site, t->operation = half, t->count = columns;
    t->factors[0] = x, t->factors[1] = w, t->sums = sums, t->group_result = result;
    if (t->flying == MOST_FLYING)
        fail("too many products of a group of warps are not waited for");
    t->products[t->flying++] = (Flying){{x, w}, columns, t->commits, turned, held != NULL};
    t->held = held, t->turned = turned;
    leave(IN_GROUP);
    if (current % LANES == 0)
        read_factors(&t->products[t->flying - 1], UINT32_MAX);
}

static double number(uint32_t word, int part, int kind)
{
    if (kind == MMA_S8)
        return (int8_t)(word >> 8 * part);
    uint16_t bits = (uint16_t)(word >> 16 * part);
    if (kind == MMA_BF16) {
        uint32_t wide = (uint32_t)bits << 16;
        float f;
        memcpy(&f, &wide, 4);
        return f;
    }
    int exponent = bits >> 10 & 31;
    double value = (bits & 1023) / 1024.0, scale = exponent ? 1.0 : 2.0;
    value = exponent == 31 ? (bits & 1023 ? 0.0 / 0.0 : 1.0 / 0.0) : value + (exponent != 0);
    for (int i = exponent; i < 15 && exponent != 31; i++)
        scale /= 2;
    for (int i = 15; i < exponent && exponent != 31; i++)
        scale *= 2;
    return (bits >> 15 ? -1 : 1) * value * scale;
}

static void multiply(int first)
{
    int kind = threads[first].operation, per = kind == MMA_S8 ? 4 : 2, depth = 8 * per;
    static double x[16][32], w[32][8];
    for (int i = 0; i < LANES; i++) {
        int g = i / 4, t = i % 4;
        for (int e = 0; e < per; e++) {
            for (int r = 0; r < 4; r++)
                x[8 * (r % 2) + g][depth / 2 * (r / 2) + per * t + e] = number(threads[first + i].words[r], e, kind);
            for (int r = 0; r < 2; r++)
                w[depth / 2 * r + per * t + e][g] = number(threads[first + i].words[4 + r], e, kind);
        }
    }
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++) {
            double sum = 0;
            uint32_t *word = &threads[first + i].words[6 + j];
            float f;
            memcpy(&f, word, 4);
            sum = kind == MMA_S8 ? (double)(int32_t)*word : f;
            for (int k = 0; k < depth; k++)
                sum += x[8 * (j / 2) + i / 4][k] * w[k][2 * (i % 4) + j % 2];
            f = (float)sum;
            if (kind == MMA_S8)
                threads[first + i].result[j] = (uint32_t)(int32_t)sum;
            else
                memcpy(&threads[first + i].result[j], &f, 4);
        }
}

/* where an element of a matrix lies whose rows of 128 bytes are swizzled, as its descriptor says: place `deep` of a
   line. Rows go along the lines of 64 places; or, `turned`, 64 lines beside each other are a row */
static unsigned char *element_at(uint64_t descriptor, int line, int deep, int turned)
{
    uint64_t start = (descriptor & 0x3FFF) << 4, step = (descriptor >> 32 & 0x3FFF) << 4;
    uint64_t lines = (descriptor >> 16 & 0x3FFF) << 4;
    int row = turned ? deep : line, column = turned ? line % 64 : deep;
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0)
        fail("a descriptor of a matrix that is not swizzled in rows of 128 bytes");
    uint64_t at = start + (uint64_t)(row / 8) * step + (uint64_t)(row % 8) * 128 + 2 * (uint64_t)column;
    at += turned ? (uint64_t)(line / 64) * lines : 0;
    return shared_start + (at ^ (at >> 7 & 7) << 4);
}

/* a warp reads what a product takes of the factors, 16 rows of the first one and all of the other, up to some time */
static void read_factors(const Flying *f, uint32_t until)
{
    int first = current / LANES % (GROUP / LANES) * 16;
    for (int k = 0; k < 16; k++)
        for (int i = f->held ? 16 : 0; i < 16 + f->columns; i++) {
            unsigned char *p = i < 16 ? element_at(f->factors[0], first + i, k, f->turned >> 1)
                                      : element_at(f->factors[1], i - 16, k, f->turned & 1);
            Region *r = touched(p, 2, 2, SHARED, "reads");
            note_read(r, p - r->base, 2);
            for (int64_t at = p - r->base; at < p - r->base + 2; at++)
                r->reads[at * warps + current / LANES] = until;
        }
}

/* an element; one warp of the group that begins with a thread reads it, or all (-1) */
static double element(uint64_t descriptor, int line, int deep, int turned, int kind, int first, int warp)
{
    unsigned char *p = element_at(descriptor, line, deep, turned);
    Region *r = touched(p, 2, 2, SHARED, "reads");
    for (int i = 0; i < GROUP / LANES; i++)
        if (warp < 0 || warp == i) {
            current = first + i * LANES;
            note_read(r, p - r->base, 2);
        }
    Shadow *s = &r->shadow[p - r->base];
    if (s->writer > 0 && s->write_tick > threads[(s->writer - 1) % thread_count].fence_tick)
        fail_at(r, p - r->base, "reads", ", which was written without a fence for this way of reading");
    uint16_t bits;
    memcpy(&bits, p, 2);
    return number(bits, 0, kind);
}

static void multiply_group(int first)
{
    static double x[64][16], w[256][16];
    int n = threads[first].count, kind = threads[first].operation ? MMA_F16 : MMA_BF16;
    current = first, site = threads[first].site;
    for (int k = 0; k < 16; k++) {
        for (int i = 0; i < 64 && threads[first].held == NULL; i++)
            x[i][k] = element(threads[first].factors[0], i, k, threads[first].turned >> 1, kind, first, i / 16);
        for (int i = 0; i < n; i++)
            w[i][k] = element(threads[first].factors[1], i, k, threads[first].turned & 1, kind, first, -1);
    }
    for (int i = 0; i < GROUP && threads[first].held != NULL; i++)
        for (int j = 0; j < 8; j++) {
            int row = 16 * (i / LANES) + i % LANES / 4 + 8 * (j / 2 % 2), column = 8 * (j / 4) + 2 * (i % 4) + j % 2;
            x[row][column] = number(threads[first + i].held[j / 2], j % 2, kind);
        }
    for (int i = 0; i < GROUP; i++)
        for (int j = 0; j < n / 2; j++) {
            int row = 16 * (i / LANES) + 8 * (j % 4 / 2) + i % LANES / 4, column = 8 * (j / 4) + 2 * (i % 4) + j % 2;
            double sum = threads[first + i].sums[j];
            for (int k = 0; k < 16; k++)
                sum += x[row][k] * w[column][k];
            threads[first + i].group_result[j] = (float)sum;
        }
}

/* the same for a group of four warps */
static int group_step(int first)
{
    for (int i = first; i < first + GROUP; i++)
        if (i >= thread_count || threads[i].state != IN_GROUP || threads[i].site != threads[first].site)
            return 0;
    multiply_group(first);
    for (int i = first; i < first + GROUP; i++)
        threads[i].state = READY;
    return 1;
}
