package main

// axes are measured in this order.
func axes() []axis {
	return []axis{
		{
			"tables", "what a charge costs beside those that are in the tables already", "charges in the tables", alongTables,
			[]picture{
				{"curve-tables-cost.svg", "What a charge costs as the tables grow", "processor time of a charge, ms", cost},
				{"curve-tables-p99.svg", "How long it takes as the tables grow", "99th percentile, ms", p99},
			},
		},
		{
			"backlog", "what a charge costs if it was accepted while no worker ran", "accepted charges that wait when the worker starts", alongBacklog,
			[]picture{
				{"curve-backlog-cost.svg", "What a charge costs behind a backlog", "processor time of a charge, ms", cost},
				{"curve-backlog-memory.svg", "What the worker needs for a backlog", "memory at most, MB", func(p Point) float64 { return p.Worker.Peak }},
			},
		},
		{
			"concurrency", "charges under way at a time, each from the request to the webhook", "charges in flight", alongConcurrency,
			[]picture{
				{"curve-concurrency-rate.svg", "Charges a second by how many are under way", "× pgbench", func(p Point) float64 { return toUnit(p.Sample) }},
				{"curve-concurrency-p99.svg", "How long they take by how many are under way", "99th percentile, ms", p99},
			},
		},
		{
			"latency", "a provider that is slow, called twice for each charge", "the provider's latency, ms", alongLatency,
			[]picture{{"curve-latency.svg", "Charges a second at a slow provider; broken: if nothing else took time", "charges a second", rate}},
		},
		{
			"retention", "accepting while a janitor removes what has expired, by turns", "rows removed", alongRetention,
			[]picture{{"curve-retention.svg", "How long accepting takes beside the janitor, turn by turn", "99th percentile, ms", p99}},
		},
		{
			"memory", "memory of the programs as they work on", "charges carried so far", alongTime,
			[]picture{
				{"curve-memory-api.svg", "Memory of the api", "MB", func(p Point) float64 { return p.API.End }},
				{"curve-memory-worker.svg", "Memory of the worker", "MB", func(p Point) float64 { return p.Worker.End }},
			},
		},
	}
}

func rate(p Point) float64 { return p.PerSecond }
func p99(p Point) float64  { return p.P99 }

// cost is the processor time of the programs and of PostgreSQL, for each charge.
func cost(p Point) float64 { return p.ProgramCPU + p.DatabaseCPU }
