// Package webhook delivers signed webhooks to addresses that merchants chose.
//
// It promises:
//
//   - A delivery is one POST of the body as it is, signed anew with the time of
//     this delivery (Standard Webhooks, HMAC-SHA256), so that a receiver with a
//     tolerance of five minutes accepts a redelivery hours later. It carries a
//     signature by every secret that the caller gives, in the caller's order. The
//     webhook-id is the caller's and stays the same, so that the receiver can
//     tell a redelivery.
//   - nil means that an answer with a status of 2xx was received. Every error
//     is exactly one of [TargetError], [BusyError] and [DeliveryError], or the
//     error of the caller's context.
//   - No connection is opened to an address that is not public, unless the
//     operator allowed it (Config.AllowCIDRs). The address is judged when it is
//     dialed, after the name was resolved, so a name that changes its mind
//     does not help. Redirects are not followed and no proxy is used.
//   - Plain http goes to allowed addresses only. Everything else is https with
//     a verified certificate.
//   - A receiver can hold a delivery no longer than Config.Timeout, and make it
//     read no more than 64 KiB of headers and 64 KiB of body.
//   - A receiver, which is a merchant at a host, can hold no more than
//     Config.Share deliveries at a time, and no more than 4 while it keeps them
//     waiting: while the last one had no whole answer within half of
//     Config.Timeout. What is beyond is refused with a [BusyError].
//   - No error text holds the target's path, query or secret, nor an address
//     that a name resolved to.
//
// It does not promise that a webhook arrives once: an answer can be lost after
// the receiver took the webhook. Receivers go by the webhook-id. It neither
// repeats a delivery nor remembers one, and it owns no table: when to deliver
// again is the caller's business.
//
// Any port of a public address may be chosen.
package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	defaultTimeout  = 10 * time.Second
	maxRetryAfter   = 24 * time.Hour
	maxHeaderBytes  = 64 << 10
	maxBodyBytes    = 64 << 10
	maxConnsPerHost = 64
	maxIdleConns    = 256
	idleConnTimeout = 30 * time.Second
)

// Config says where webhooks may go and how long a delivery may take.
type Config struct {
	// AllowCIDRs are targets allowed beyond public addresses, by plain http
	// too. Meant for tests and for receivers in the operator's own network.
	AllowCIDRs []netip.Prefix
	// Timeout bounds one delivery, from resolving the name to the last byte
	// that is read. 0 means 10 seconds.
	Timeout time.Duration
	// Share is how many deliveries at a time one receiver may hold, so that the
	// others find a place. 0 means any number.
	Share int
	// Observe, where set, is called with the host before a webhook is sent. Its
	// headers go along, unsigned, and what it returns is called with the status of
	// the answer, 0 if none came. It must return at once.
	Observe func(ctx context.Context, host string) (headers map[string]string, answered func(status int))
	// Now is the clock that signatures are dated by. It is required.
	Now func() time.Time
}

// Sender delivers webhooks. It is safe for concurrent use.
type Sender struct {
	secure  *http.Client
	plain   *http.Client
	timeout time.Duration
	prompt  time.Duration // who needs longer for an answer counts as silent
	observe func(ctx context.Context, host string) (headers map[string]string, answered func(status int))
	now     func() time.Time
	queue   queue
}

// Message is one event on its way to one receiver.
type Message struct {
	// Merchant is whose receiver it is. It is not sent.
	Merchant string
	// URL is the target, as [CheckURL] accepts it.
	URL string
	// Secrets are the receiver's, whsec_ and base64, the newest first. The
	// delivery is signed by each of them.
	Secrets []string
	// ID is the id of the event, and so the same at each delivery.
	ID string
	// Body is JSON.
	Body []byte
}

// New returns a sender. It panics without a clock. Close releases the
// connections.
func New(cfg Config) *Sender { return newSender(cfg, &net.Dialer{}) }

func newSender(cfg Config, dialer *net.Dialer) *Sender {
	if cfg.Now == nil {
		panic("webhook: Config.Now is nil")
	}
	s := &Sender{timeout: cfg.Timeout, observe: cfg.Observe, now: cfg.Now, queue: queue{share: cfg.Share, turn: turn}}
	if s.timeout <= 0 {
		s.timeout = defaultTimeout
	}
	// Who is slower holds a place for about as long as one that never answers.
	s.prompt = s.timeout / 2
	g := newGuard(cfg.AllowCIDRs)
	s.secure = s.client(dialer, g.public)
	s.plain = s.client(dialer, g.allowedOnly)
	return s
}

// client returns an HTTP client that asks check about each address it dials, and
// then the dialer's own Control, if it has one.
func (s *Sender) client(dialer *net.Dialer, check func(netip.Addr) error) *http.Client {
	guarded := *dialer
	guarded.Control = control(check, dialer.Control)
	return &http.Client{
		Timeout:       s.timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			// Proxy stays nil: a proxy would dial for us, unguarded.
			DialContext:            guarded.DialContext,
			MaxConnsPerHost:        maxConnsPerHost,
			MaxIdleConnsPerHost:    maxConnsPerHost,
			MaxIdleConns:           maxIdleConns,
			IdleConnTimeout:        idleConnTimeout,
			MaxResponseHeaderBytes: maxHeaderBytes,
			DisableCompression:     true,
		},
	}
}

// Close closes idle connections. Deliveries under way are not disturbed.
func (s *Sender) Close() {
	s.secure.CloseIdleConnections()
	s.plain.CloseIdleConnections()
}

// Deliver sends the webhook once. It returns nil when the receiver has answered
// 2xx.
//
// A [TargetError] will come again until the target or its secret is changed. After
// a [BusyError] nothing was sent, and nothing is known of the receiver. A
// [DeliveryError] may be gone at the next attempt, and leaves open whether the
// receiver took the webhook.
func (s *Sender) Deliver(ctx context.Context, m Message) error {
	if err := s.deliver(ctx, m); err != nil {
		return fmt.Errorf("deliver webhook %s: %w", m.ID, err)
	}
	return nil
}

func (s *Sender) deliver(ctx context.Context, m Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	target, err := parse(m.URL)
	if err != nil {
		return err
	}
	req, err := s.sign(ctx, target, m)
	if err != nil {
		return err
	}
	client := s.secure
	if target.Scheme == "http" {
		client = s.plain
	}
	leave, err := s.queue.enter(ctx, receiver{m.Merchant, target.Host})
	if err != nil {
		return err
	}
	answered := s.observed(ctx, req)
	late := time.AfterFunc(s.prompt, func() {})
	res, err := client.Do(req)
	if err != nil {
		late.Stop()
		leave(false)
		answered(0)
		return s.unanswered(ctx, err)
	}
	// What is left unread costs the connection, and no more.
	_, err = io.CopyN(io.Discard, res.Body, maxBodyBytes)
	_ = res.Body.Close()
	whole := err == nil || errors.Is(err, io.EOF)
	leave(late.Stop() && whole)
	answered(res.StatusCode)
	if res.StatusCode/100 == 2 {
		return nil
	}
	return &DeliveryError{StatusCode: res.StatusCode, RetryAfter: s.retryAfter(res.Header), Err: refusal(res.StatusCode)}
}

// observed begins to observe a delivery.
func (s *Sender) observed(ctx context.Context, req *http.Request) (answered func(status int)) {
	if s.observe == nil {
		return func(int) {}
	}
	headers, answered := s.observe(ctx, req.URL.Hostname())
	for name, value := range headers {
		if req.Header.Get(name) == "" { // what is signed stays as it is
			req.Header.Set(name, value)
		}
	}
	return answered
}

func (s *Sender) sign(ctx context.Context, target *url.URL, m Message) (*http.Request, error) {
	if m.ID == "" || !visible(m.ID) {
		return nil, &TargetError{Reason: "the webhook has no id of visible ASCII characters"}
	}
	at := s.now()
	signatures, err := signatures(m, at)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(m.Body))
	if err != nil {
		return nil, &TargetError{Reason: "the target is not a URL"}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "payonce")
	req.Header.Set(standardwebhooks.HeaderWebhookID, m.ID)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signatures)
	return req, nil
}

// signatures is the list of Standard Webhooks, by which a receiver that knows
// any one of the secrets can tell that the webhook is ours. A secret that signs
// nothing verifies nothing either, so it is left out while another one signs.
func signatures(m Message, at time.Time) (string, error) {
	refusal := error(&TargetError{Reason: "the webhook has no secret"})
	var list []string
	for _, secret := range m.Secrets {
		signer, err := newSigner(secret)
		if err != nil {
			refusal = err
			continue
		}
		signature, err := signer.Sign(m.ID, at, m.Body)
		if err != nil {
			return "", &TargetError{Reason: "the webhook cannot be signed"}
		}
		list = append(list, signature)
	}
	if len(list) == 0 {
		return "", refusal
	}
	return strings.Join(list, " "), nil
}

// CheckSecret tells whether a secret signs: whsec_ and base64. The error is a
// [TargetError], without the secret.
func CheckSecret(secret string) error {
	if !strings.HasPrefix(secret, "whsec_") || !visible(secret) {
		return errSecret()
	}
	_, err := newSigner(secret)
	return err
}

func errSecret() error { return &TargetError{Reason: "the webhook secret is not whsec_ and base64"} }

// newSigner refuses an empty secret, which the library takes: anybody could
// sign with it.
func newSigner(secret string) (*standardwebhooks.Webhook, error) {
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil || secret == "" || secret == "whsec_" {
		return nil, errSecret()
	}
	return signer, nil
}

// unanswered is the error of a delivery that got no answer.
func (s *Sender) unanswered(ctx context.Context, err error) error {
	if refused, ok := errors.AsType[*TargetError](err); ok {
		return refused
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		// Not wrapped: net/http's time-out answers to
		// context.DeadlineExceeded, and the caller's context is fine.
		return &DeliveryError{Err: fmt.Errorf("no answer within %s", s.timeout)}
	}
	return &DeliveryError{Err: scrub(err)}
}
