package postgres

import "github.com/jackc/pgx/v5"

// A shared transaction is in the trace of none of its units. Each has a batch of its
// own in the trace of its caller instead, from the moment at which it is taken along
// until it is told, with none of the others' statements in it.

func traceStart(tracer pgx.QueryTracer, conn *pgx.Conn, units []*unit) {
	if t, ok := tracer.(pgx.BatchTracer); ok {
		for _, u := range units {
			u.conn, u.traced = conn, t.TraceBatchStart(u.ctx, conn, pgx.TraceBatchStartData{Batch: u.batch})
		}
	}
}

func traceRefusal(tracer pgx.QueryTracer, u *unit, sql string, err error) {
	if t, ok := tracer.(pgx.BatchTracer); ok {
		t.TraceBatchQuery(u.traced, u.conn, pgx.TraceBatchQueryData{SQL: sql, Err: err})
	}
}

func traceEnd(tracer pgx.QueryTracer, u *unit, err error) {
	if t, ok := tracer.(pgx.BatchTracer); ok && u.traced != nil {
		t.TraceBatchEnd(u.traced, u.conn, pgx.TraceBatchEndData{Err: err})
	}
}
