package telemetry

import (
	"context"
	"errors"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements returns the tracer of a pool, or nil where tracing is off.
//
// A statement has a span if it runs under a recorded one, so a poll leaves none. A batch is
// one span, and each refused statement of it is another. Spans have the text of the SQL and
// never its parameters; of an error they have the SQLSTATE.
func (t *Traces) Statements() pgx.QueryTracer {
	if t == nil {
		return nil
	}
	tracer := otelpgx.NewTracer(
		otelpgx.WithTracerProvider(t.provider),
		otelpgx.WithDisableConnectionDetailsInAttributes(), // the user's name
	)
	return statementTracer{tracer, tracer, tracer}
}

// statementTracer traces statements, batches and waits for a connection. Preparing a
// statement is part of the statement.
type statementTracer struct {
	pgx.QueryTracer
	pgx.BatchTracer
	pgxpool.AcquireTracer
}

func (s statementTracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	data.Err = wordless(data.Err)
	s.QueryTracer.TraceQueryEnd(ctx, conn, data)
}

func (s statementTracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	if data.Err != nil {
		data.Err = wordless(data.Err)
		s.BatchTracer.TraceBatchQuery(ctx, conn, data)
	}
}

func (s statementTracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	data.Err = wordless(data.Err)
	s.BatchTracer.TraceBatchEnd(ctx, conn, data)
}

func (s statementTracer) TraceAcquireEnd(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	data.Err = wordless(data.Err)
	s.AcquireTracer.TraceAcquireEnd(ctx, pool, data)
}

var errNoAnswer = errors.New("the database did not answer")

// wordless replaces the text of an error, which may quote a row. The code of a refusal and
// the name of the constraint stay.
func wordless(err error) error {
	if err == nil || errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return &pgconn.PgError{Severity: "refused", Message: refused.ConstraintName, Code: refused.Code}
	}
	return errNoAnswer
}
