package sandbox

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/internal/postgres"
)

const keyMax = 255

// call is one request to the provider, read whole before anything happens.
type call struct {
	id     string
	method string
	path   string
	// target is the object that the path names.
	target string
	key    string
	params *params
	fault  draw
}

// endpoint decides a request. An *apiError is answered as it is and saved
// nowhere; any other error means that the database could not be used.
type endpoint func(ctx context.Context, c *call) (answer, error)

// provider serves one route of the provider. A fault may cut the connection
// before anything is decided, or after everything was.
func (s *Sandbox) provider(decide endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, refusal := readCall(r)
		c.fault = s.faults.draw()
		a, err := s.carryOut(r.Context(), c, refusal, decide)
		if c.fault.dropBefore || c.fault.dropAfter {
			cut(w)
			return
		}
		s.reply(w, c, a, err)
	}
}

// carryOut is the order of a provider: a key is in flight from before its request is
// counted until its answer is decided; a fault may delay it; it is carried out
// whether or not its client still waits.
func (s *Sandbox) carryOut(ctx context.Context, c *call, refusal *apiError, decide endpoint) (answer, error) {
	ctx = context.WithoutCancel(ctx)
	first := refusal == nil && s.inFlight.enter(c.key)
	if first {
		defer s.inFlight.leave(c.key)
	}
	if err := s.arrive(ctx, c); err != nil {
		return answer{}, err
	}
	if refusal == nil && !first {
		return answer{}, keyInUse(c.key)
	}
	s.delay(c.fault.slow)
	switch {
	case c.fault.dropBefore:
		return answer{}, nil
	case refusal != nil:
		return answer{}, refusal
	}
	ctx, cancel := context.WithTimeout(ctx, workDeadline)
	defer cancel()
	return decide(ctx, c)
}

// insertRequest counts without waiting for the disk: a crash of the sandbox
// loses none, a crash of the server at most those of its last moments, and
// never one whose effect was committed, which comes later in the log.
const insertRequest = `
insert into requests (id, method, path, idempotency_key)
values ($1, $2, $3, nullif($4, ''))`

const withoutWaiting = `select set_config('synchronous_commit', 'off', true)`

func (s *Sandbox) arrive(ctx context.Context, c *call) error {
	ctx, cancel := context.WithTimeout(ctx, workDeadline)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue(withoutWaiting)
	b.Queue(insertRequest, c.id, c.method, c.path, c.key)
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("count a request: %w", err)
	}
	return nil
}

// read makes an endpoint of a function that changes nothing. Keys do not
// concern it.
func (s *Sandbox) read(query endpoint) endpoint {
	return func(ctx context.Context, c *call) (answer, error) {
		if c.fault.error500 != never {
			return answer{}, injected()
		}
		return query(ctx, c)
	}
}

func unrecognized(_ context.Context, c *call) (answer, error) {
	return answer{}, &apiError{
		Type: typeInvalid, status: http.StatusNotFound,
		Message: fmt.Sprintf("Unrecognized request URL (%s: %s).", c.method, c.path),
	}
}

// reply writes the answer, or the error as one.
func (s *Sandbox) reply(w http.ResponseWriter, c *call, a answer, err error) {
	w.Header().Set("Request-Id", c.id)
	if err != nil {
		var refusal *apiError
		switch {
		case errors.As(err, &refusal):
		case postgres.IsLockTimeout(err):
			refusal = lockTimeout()
		default:
			s.logger.Error("request not carried out", "request_id", c.id, "path", c.path, "error", err)
			refusal = outOfService()
		}
		a = refusal.answer()
	}
	if c.key != "" {
		w.Header().Set("Idempotency-Key", c.key)
	}
	if a.replayOf != "" {
		w.Header().Set("Idempotent-Replayed", "true")
		w.Header().Set("Original-Request", a.replayOf)
	}
	send(w, a)
}

func send(w http.ResponseWriter, a answer) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the client may have gone; the outcome stands
}

// writeJSON answers a control call or the shop.
func writeJSON(w http.ResponseWriter, status int, v any) { send(w, object(status, v)) }

// refuseControl answers a control call or a notification that is refused.
func refuseControl(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]map[string]string{"error": {"message": message}})
}

// cut closes the connection under the client's request without an answer.
func cut(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // a server that cannot hijack cuts this way
	}
	_ = conn.Close()
}

// readCall reads the request whole. The call is usable even if refused.
func readCall(r *http.Request) (*call, *apiError) {
	c := &call{
		id:     newID("req_"),
		method: r.Method,
		path:   strings.ToValidUTF8(strings.ReplaceAll(r.URL.Path, "\x00", ""), ""),
		target: r.PathValue("id"),
	}
	if !authorized(r) {
		return c, unauthorized()
	}
	encoded := r.URL.RawQuery
	if r.Method == http.MethodPost {
		key := r.Header.Get("Idempotency-Key")
		if !validKey(key) {
			return c, invalid("", "", fmt.Sprintf("Idempotency keys hold at most %d printable ASCII characters.", keyMax))
		}
		c.key = key
		body, refusal := readForm(r)
		if refusal != nil {
			return c, refusal
		}
		encoded = body
	}
	p, refusal := readParams(encoded)
	c.params = p
	return c, refusal
}

func readForm(r *http.Request) (string, *apiError) {
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyLimit+1))
	switch {
	case err != nil:
		return "", invalid("", "", "The request's body could not be read.")
	case len(body) > bodyLimit:
		return "", invalid("", "", fmt.Sprintf("The request's body is larger than %d bytes.", bodyLimit))
	case len(body) == 0:
		return "", nil
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return "", invalid("", "", "Send parameters as application/x-www-form-urlencoded.")
	}
	return string(body), nil
}

func validKey(key string) bool {
	if len(key) > keyMax {
		return false
	}
	for _, c := range []byte(key) {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}

// authorized takes any test key, as a bearer or as the user of basic
// authentication. There is nothing here to protect.
func authorized(r *http.Request) bool {
	scheme, value, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch strings.ToLower(scheme) {
	case "bearer":
	case "basic":
		decoded, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return false
		}
		value, _, _ = strings.Cut(string(decoded), ":")
	default:
		return false
	}
	key, ok := strings.CutPrefix(value, "sk_test_")
	return ok && key != ""
}
