// The engine `load`: bytes from the host's memory, or a constant byte, into weights, activations or params.
//
// A request goes out in every cycle and is answered LATENCY cycles later; where the bytes go waits as long in a delay.
// Bytes of a constant take the same way, so that all arrive in order. Finished: the last piece is being written.
module load #(
    parameter int N = formats::ARRAY,
    parameter int BUS = formats::BUS,
    parameter int AT = formats::LOAD_COPY_AT,
    parameter int ROUTE = formats::LOAD_COPY_ROUTE,
    parameter int ADDRESS = 40,
    parameter int LATENCY = 32
) (
    input  logic                    clk,
    input  logic                    reset,
    // the next instruction, and where the argument that it names lies
    input  formats::load_copy_t              next,
    input  logic                    go,
    input  logic [     ADDRESS-1:0] base,
    output logic                    take,
    output logic                    finish,
    // the host's memory
    output logic                    request,
    output logic [     ADDRESS-1:0] request_at,
    input  logic [       8*BUS-1:0] answer,
    // the memories on the chip: the bytes to write of the word at `word`; `data` is the same for all pieces of a word
    output logic [           N-1:0] write_weights,
    output logic [           N-1:0] write_activations,
    output logic [         4*N-1:0] write_params,
    output logic [AT-1:0] word,
    output logic [       8*BUS-1:0] data
);
  localparam int NARROW = N / BUS, WIDE = 4 * N / BUS;  // pieces of a word of weights, of params
  localparam int LANE = $clog2(WIDE);

  typedef struct packed {
    logic last;
    logic [ROUTE-1:0] route;
    logic fill;
    logic [7:0] value;
    logic [AT-1:0] word;
    logic [LANE-1:0] lane;
    logic [BUS-1:0] bytes;
  } piece_t;

  logic valid, last, fill, arrived;
  logic [ROUTE-1:0] route;
  logic [7:0] value;
  logic [AT-1:0] to_word;
  logic [AT:0] stride_0, stride_1, stride_2;
  logic [LANE-1:0] lane;
  logic [BUS-1:0] to_bytes;
  piece_t here;

  assign {stride_0, stride_1, stride_2} = {next.stride_0, next.stride_1, next.stride_2};
  assign take = go && (!valid || last);
  assign request = valid && !fill;

  always_ff @(posedge clk) if (take) {route, fill, value} <= {next.route, next.fill, next.value};

  pieces #(
      .BUS(BUS),
      .ADDRESS(ADDRESS),
      .AT(AT),
      .LANE(LANE),
      .COUNT(formats::LOAD_COPY_COUNT),
      .RUN(formats::LOAD_COPY_RUN)
  ) cut (
      .clk,
      .reset,
      .start(take),
      .host(base + ADDRESS'(next.host)),
      .host_strides({
        ADDRESS'($signed(next.host_stride_0)),
        ADDRESS'($signed(next.host_stride_1)),
        ADDRESS'($signed(next.host_stride_2))
      }),
      .at(next.at),
      .strides({stride_0[AT-1:0], stride_1[AT-1:0], stride_2[AT-1:0]}),
      .counts({next.count_0, next.count_1, next.count_2}),
      .run(next.run),
      .last_lane(next.route == ROUTE'(formats::LOAD_PARAMS) ? LANE'(WIDE - 1) : LANE'(NARROW - 1)),
      .valid,
      .last,
      .piece_host(request_at),
      .piece_word(to_word),
      .piece_lane(lane),
      .piece_bytes(to_bytes)
  );
  delay #(
      .WIDTH ($bits(here)),
      .CYCLES(LATENCY)
  ) under_way (
      .clk,
      .reset,
      .in_valid(valid),
      .in({last, route, fill, value, to_word, lane, to_bytes}),
      .out_valid(arrived),
      .out(here)
  );

  logic [4*N-1:0] bytes;
  for (genvar p = 0; p < WIDE; p++) begin : piece
    assign bytes[p*BUS+:BUS] = arrived && here.lane == LANE'(p) ? here.bytes : '0;
  end
  assign word = here.word;
  assign data = here.fill ? {BUS{here.value}} : answer;
  assign write_weights = here.route == ROUTE'(formats::LOAD_WEIGHTS) ? bytes[N-1:0] : '0;
  assign write_activations = here.route == ROUTE'(formats::LOAD_ACTIVATIONS) ? bytes[N-1:0] : '0;
  assign write_params = here.route == ROUTE'(formats::LOAD_PARAMS) ? bytes : '0;
  assign finish = arrived && here.last;
endmodule
