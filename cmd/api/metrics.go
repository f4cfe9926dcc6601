package main

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/internal/httpapi"
	"github.com/payonce/payonce/internal/telemetry"
)

// metrics are those of an api.
type metrics struct {
	requests, denials, keys, events telemetry.Counter
	took                            telemetry.Times
}

func meter(r *telemetry.Registry) *metrics {
	route := telemetry.Label{Name: "route"}
	return &metrics{
		requests: r.Counter("payonce_http_requests_total",
			"Responses.", route, telemetry.Label{Name: "method"}, telemetry.Label{Name: "status"}),
		took: r.Times("payonce_http_request_duration_seconds",
			"Time from the request's headers to the end of the response.", route),
		denials: r.Counter("payonce_authentication_failures_total",
			"Requests whose API key was refused. invalid: missing, malformed, unknown, expired or revoked. guessing: not read, because its address has sent too many.", telemetry.LabelOf("result", httpapi.DeniedInvalid, httpapi.DeniedGuessing)),
		keys: r.Counter("payonce_idempotency_requests_total",
			"Requests with an idempotency key. first: new. replayed: the stored response. reused: the key belongs to a different request. expired: a tombstone. in_use: another request is using the key. unavailable: the database is.", telemetry.LabelOf("result",
				httpapi.KeyFirst, httpapi.KeyReplayed, httpapi.KeyReused, httpapi.KeyExpired, httpapi.KeyInUse, httpapi.KeyUnavailable)),
		events: r.Counter("payonce_webhook_events_total",
			"Signed events of the provider. sent: about our payments, repetitions among them. clock: more than five minutes from the program's clock, and refused.",
			telemetry.LabelOf("result", httpapi.EventSent, httpapi.EventClock)),
	}
}

// observe counts and times requests, and traces those of the API.
func (m *metrics) observe(traces *telemetry.Traces) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r, request := c.Request(), httpapi.AnswerOf(c)
			timed, traced := m.took.Time(cmp.Or(request.Route, noRoute)), func(int, string) {}
			if strings.HasPrefix(request.Route, "/v1/") {
				var ctx context.Context
				ctx, traced = traces.Serving(r.Context(), request.Method, request.Route, r.Header.Values("Traceparent"))
				c.SetRequest(r.WithContext(ctx))
			}
			err := next(c)
			timed()
			a := httpapi.AnswerOf(c)
			traced(a.Status, m.answered(a))
			return err
		}
	}
}

const noRoute = "none"

// answered counts an answer, and returns what its idempotency key led to, "" where none was read.
func (m *metrics) answered(a httpapi.Answer) (key string) {
	m.requests.Add(1, cmp.Or(a.Route, noRoute), a.Method, strconv.Itoa(a.Status))
	switch a.Result {
	case "":
	case httpapi.DeniedInvalid, httpapi.DeniedGuessing:
		m.denials.Add(1, string(a.Result))
	case httpapi.EventSent, httpapi.EventClock:
		m.events.Add(1, string(a.Result))
	default:
		key = string(a.Result)
		m.keys.Add(1, key)
	}
	return key
}
