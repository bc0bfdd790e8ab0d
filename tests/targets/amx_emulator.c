/* Intel's AMX tile instructions for processors without them, slowly: a handler of SIGILL that decodes and executes the
 * instruction that was refused, on registers of its own for each thread. For tests of generated code only.
 *
 *     cc -O2 -mavx2 -mfma -fPIC -shared amx_emulator.c -o amx_emulator.so;  amx_install()
 *
 * The meaning of each instruction is that of Intel's Software Developer's Manual. What would raise #UD there (no
 * configuration, shapes that do not fit, registers that are not configured) ends the process with exit code 97 and a
 * line on stderr; an instruction that is not one of these dies of SIGILL as always. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#if !defined(__x86_64__) || !defined(__linux__)
#error "for Linux on x86-64"
#endif

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, THREADS = 256 };

struct state {
    int configured;
    int rows[TILES], row_bytes[TILES];
    uint8_t tile[TILES][ROWS][ROW_BYTES];
};

enum { LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED, TDPBF16PS, TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD, KINDS };
static const char *const NAMES[KINDS] = {"ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored",
                                         "tdpbf16ps", "tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud"};

static struct state states[THREADS];
static int threads_seen;
static long counts[KINDS];
/* the state itself is too large for thread-local storage of a library that is loaded late */
static __thread struct state *own __attribute__((tls_model("initial-exec")));

static void refuse(const char *why) {
    char line[128];
    int n = snprintf(line, sizeof line, "amx_emulator: #UD: %s\n", why);
    if (write(2, line, (size_t)n) < 0) _exit(98);
    _exit(97);
}

static struct state *state_of_thread(void) {
    if (!own) {
        int number = __atomic_fetch_add(&threads_seen, 1, __ATOMIC_RELAXED);
        if (number >= THREADS) refuse("more threads than the emulator has room for");
        own = &states[number];
    }
    return own;
}

/* ---- what the instructions do ---- */

static void load_configuration(struct state *s, const uint8_t *m) {
    memset(s, 0, sizeof *s);
    if (m[0] == 0) return;
    if (m[0] != 1) refuse("palette is neither 0 nor 1");
    for (int i = 1; i < 64; i++) {
        int used = i == 1 || (i >= 16 && i < 32) || (i >= 48 && i < 56);
        if (m[i] && !used) refuse("a reserved byte of the configuration is not zero");
    }
    if (m[1]) refuse("the configuration starts at a row that is not the first");
    for (int t = 0; t < TILES; t++) {
        int row_bytes = m[16 + 2 * t] | m[17 + 2 * t] << 8, rows = m[48 + t];
        if (row_bytes > ROW_BYTES || rows > ROWS || !row_bytes != !rows) refuse("a shape is not possible");
        s->row_bytes[t] = row_bytes, s->rows[t] = rows;
    }
    s->configured = 1;
}

static void used(const struct state *s, int t) {
    if (!s->configured) refuse("no configuration is loaded");
    if (t >= TILES || !s->rows[t]) refuse("a register is not configured");
}

static void move(struct state *s, int t, uint8_t *base, int64_t stride, int store) {
    used(s, t);
    uint8_t old[ROWS][ROW_BYTES];
    memcpy(old, s->tile[t], sizeof old);
    if (!store) memset(s->tile[t], 0, sizeof old);
    for (int r = 0; r < s->rows[t]; r++) {
        uint8_t *at = base + r * stride;
        if (store) memcpy(at, old[r], (size_t)s->row_bytes[t]);
        else memcpy(s->tile[t][r], at, (size_t)s->row_bytes[t]);
    }
}

static void check_product(const struct state *s, int c, int a, int b) {
    used(s, a), used(s, b), used(s, c);
    if (c == a || c == b || a == b) refuse("registers of a product are not different");
    if (s->row_bytes[a] % 4 || s->row_bytes[b] % 4 || s->row_bytes[c] % 4) refuse("rows are no multiples of 4 bytes");
    if (s->rows[c] != s->rows[a] || s->row_bytes[a] / 4 != s->rows[b] || s->row_bytes[c] != s->row_bytes[b])
        refuse("shapes of a product do not fit");
}

static float widened(const uint8_t *p) {
    uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Rounds to nearest even, takes denormals for zero and makes none, whatever MXCSR says, and leaves that as it is. The
 * products of even and of odd numbers are summed by fused multiply-adds, separately, and added to the sum at the end. */
static void products_of_halves(struct state *s, int c, int a, int b) {
    check_product(s, c, a, b);
    unsigned saved = _mm_getcsr();
    _mm_setcsr(0x1F80 | 0x8040);
    for (int m = 0; m < s->rows[c]; m++) {
        for (int n = 0; n < s->row_bytes[c] / 4; n++) {
            __m128 even = _mm_setzero_ps(), odd = _mm_setzero_ps(), sum;
            for (int k = 0; k < s->row_bytes[a] / 4; k++) {
                const uint8_t *x = &s->tile[a][m][4 * k], *w = &s->tile[b][k][4 * n];
                even = _mm_fmadd_ss(_mm_set_ss(widened(x)), _mm_set_ss(widened(w)), even);
                odd = _mm_fmadd_ss(_mm_set_ss(widened(x + 2)), _mm_set_ss(widened(w + 2)), odd);
            }
            sum = _mm_load_ss((const float *)&s->tile[c][m][4 * n]);
            _mm_store_ss((float *)&s->tile[c][m][4 * n], _mm_add_ss(sum, _mm_add_ss(even, odd)));
        }
    }
    _mm_setcsr(saved);
}

static void products_of_bytes(struct state *s, int c, int a, int b, int a_signed, int b_signed) {
    check_product(s, c, a, b);
    for (int m = 0; m < s->rows[c]; m++) {
        for (int n = 0; n < s->row_bytes[c] / 4; n++) {
            uint32_t sum;
            memcpy(&sum, &s->tile[c][m][4 * n], 4);
            for (int k = 0; k < s->row_bytes[a]; k++) {
                uint8_t x = s->tile[a][m][k], w = s->tile[b][k / 4][4 * n + k % 4];
                sum += (uint32_t)((a_signed ? (int8_t)x : (int)x) * (b_signed ? (int8_t)w : (int)w));
            }
            memcpy(&s->tile[c][m][4 * n], &sum, 4);
        }
    }
}

/* ---- decoding ---- */

static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

struct place {
    int64_t base, index;
    int length, has_sib;
};

/* The operand in memory of the ModRM byte at p (of an instruction that ends behind it): base with displacement, scaled
 * index, and the bytes that they take. */
static struct place decode_memory(const uint8_t *p, const greg_t *regs, int x, int b) {
    struct place found = {0, 0, 1, 0};
    int mod = p[0] >> 6, rm = p[0] & 7, no_base = 0;
    if (rm == 4) {
        int scale = p[1] >> 6, index = (p[1] >> 3 & 7) | x << 3, base = (p[1] & 7) | b << 3;
        found.has_sib = 1, found.length = 2;
        if (index != 4) found.index = regs[REGISTERS[index]] << scale;
        no_base = mod == 0 && (p[1] & 7) == 5;
        if (!no_base) found.base = regs[REGISTERS[base]];
    } else if (!(mod == 0 && rm == 5)) {
        found.base = regs[REGISTERS[rm | b << 3]];
    }
    int32_t wide;
    memcpy(&wide, p + found.length, 4);
    if (mod == 1) {
        found.base += (int8_t)p[found.length], found.length += 1;
    } else if (mod == 2 || no_base || (mod == 0 && rm == 5)) {
        found.base += wide, found.length += 4;
        if (mod == 0 && rm == 5) found.base += (int64_t)(intptr_t)(p + found.length); /* behind the instruction */
    }
    return found;
}

/* Execute the instruction at p; its length, or 0 if it is none of ours. */
static int execute(const uint8_t *p, const greg_t *regs) {
    if (p[0] != 0xC4 || (p[1] & 31) != 2 || p[2] & 0x84) return 0; /* three-byte VEX, map 0F38, W0, 128 bits */
    int x = !(p[1] & 0x40), b = !(p[1] & 0x20), v = ~(p[2] >> 3) & 15, prefix = p[2] & 3, opcode = p[3];
    int mod = p[4] >> 6, reg = p[4] >> 3 & 7, rm = p[4] & 7, kind;
    enum { NONE, P66, PF3, PF2 };
    if (!(p[1] & 0x80)) return 0;
    struct state *s = state_of_thread();
    struct place m = {0, 0, 1, 0};
    if (mod != 3) m = decode_memory(p + 4, regs, x, b);
    if (opcode == 0x49 && prefix == NONE && mod != 3 && reg == 0 && v == 0) {
        load_configuration(s, (const uint8_t *)(intptr_t)(m.base + m.index));
        kind = LDTILECFG;
    } else if (opcode == 0x49 && prefix == NONE && p[4] == 0xC0 && v == 0) {
        memset(s, 0, sizeof *s);
        kind = TILERELEASE;
    } else if (opcode == 0x49 && prefix == PF2 && mod == 3 && rm == 0 && v == 0) {
        used(s, reg);
        memset(s->tile[reg], 0, sizeof s->tile[reg]);
        kind = TILEZERO;
    } else if (opcode == 0x4B && (prefix == PF2 || prefix == PF3) && m.has_sib && v == 0) {
        move(s, reg, (uint8_t *)(intptr_t)m.base, m.index, prefix == PF3);
        kind = prefix == PF3 ? TILESTORED : TILELOADD;
    } else if (opcode == 0x5C && prefix == PF3 && mod == 3 && !b) {
        products_of_halves(s, reg, rm, v);
        kind = TDPBF16PS;
    } else if (opcode == 0x5E && mod == 3 && !b) {
        products_of_bytes(s, reg, rm, v, prefix == PF2 || prefix == PF3, prefix == PF2 || prefix == P66);
        kind = prefix == PF2 ? TDPBSSD : prefix == PF3 ? TDPBSUD : prefix == P66 ? TDPBUSD : TDPBUUD;
    } else {
        return 0;
    }
    __atomic_fetch_add(&counts[kind], 1, __ATOMIC_RELAXED);
    return 4 + m.length;
}

static void on_illegal(int number, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    int length = execute((const uint8_t *)(intptr_t)regs[REG_RIP], regs);
    (void)info;
    if (length) regs[REG_RIP] += length;
    else signal(number, SIG_DFL); /* once more, and the process ends */
}

/* ---- for the tests ---- */

int amx_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_illegal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGILL, &action, 0);
}

/* How often an instruction has been executed, by all threads; -1 for one that is not known. */
long amx_count(const char *name) {
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(name, NAMES[i])) return counts[i];
    return -1;
}

/* How many threads have a configuration loaded: none should after a kernel. */
int amx_configured(void) {
    int n = 0;
    for (int i = 0; i < THREADS; i++) n += states[i].configured;
    return n;
}
