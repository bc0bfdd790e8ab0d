// The engine `store`: from outputs, or a constant byte, to the host's memory, a piece of BUS bytes in every cycle.
// Finished: the last piece is there, LATENCY cycles after it went out.
module store #(
    parameter int N = formats::ARRAY,
    parameter int BUS = formats::BUS,
    parameter int AT = formats::STORE_COPY_AT,
    parameter int ADDRESS = 40,
    parameter int LATENCY = 32
) (
    input  logic                     clk,
    input  logic                     reset,
    // the next instruction, and where the argument that it names lies
    input  formats::store_copy_t              next,
    input  logic                     go,
    input  logic [      ADDRESS-1:0] base,
    output logic                     take,
    output logic                     finish,
    // outputs, which answer in the next cycle
    output logic [AT-1:0] read_at,
    input  logic [          8*N-1:0] read_data,
    // the host's memory: the bytes to write from `write_at` on
    output logic [          BUS-1:0] write,
    output logic [      ADDRESS-1:0] write_at,
    output logic [        8*BUS-1:0] write_data
);
  localparam int PIECES = N / BUS;  // of a word
  localparam int LANE = PIECES > 1 ? $clog2(PIECES) : 1;

  logic valid, last, fill, sent, sent_last, sent_fill;
  logic [7:0] value, sent_value;
  logic [ADDRESS-1:0] host;
  logic [AT:0] stride_0, stride_1, stride_2;
  logic [LANE-1:0] lane, sent_lane;
  logic [BUS-1:0] bytes;

  assign {stride_0, stride_1, stride_2} = {next.stride_0, next.stride_1, next.stride_2};
  assign take = go && (!valid || last);

  pieces #(
      .BUS(BUS),
      .ADDRESS(ADDRESS),
      .AT(AT),
      .LANE(LANE),
      .COUNT(formats::STORE_COPY_COUNT),
      .RUN(formats::STORE_COPY_RUN)
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
      .last_lane(LANE'(PIECES - 1)),
      .valid,
      .last,
      .piece_host(host),
      .piece_word(read_at),
      .piece_lane(lane),
      .piece_bytes(bytes)
  );

  always_ff @(posedge clk) begin
    if (take) {fill, value} <= {next.fill, next.value};
    {sent_fill, sent_value} <= {fill, value};
    sent <= valid && !reset;
    sent_last <= last;
    sent_lane <= lane;
    write <= valid && !reset ? bytes : '0;
    write_at <= host;
  end
  assign write_data = sent_fill ? {BUS{sent_value}} : read_data[8*BUS*sent_lane+:8*BUS];

  logic [LATENCY-1:0] under_way;  // last pieces on their way
  assign finish = under_way[LATENCY-1];
  always_ff @(posedge clk) under_way <= reset ? '0 : {under_way[LATENCY-2:0], sent && sent_last};
endmodule
