// Package webhook delivers signed webhooks to addresses that merchants chose. It does not
// repeat a delivery and owns no table: the caller decides when to deliver again, and how
// many deliveries a slow receiver may hold.
//
// # Guarantees
//
//   - A delivery is one POST of the body as it is. It is signed by every secret of the message, in order, with the
//     time of this delivery (Standard Webhooks, HMAC-SHA256), so a receiver accepts a redelivery hours later. The
//     webhook-id stays the same, so the receiver recognizes it.
//   - No connection is opened to an address that is not public, unless the operator allowed it
//     (Config.AllowCIDRs). The address is checked when it is dialed, after the name was resolved. Redirects are not
//     followed and no proxy is used. Plain http goes to allowed addresses only.
//   - A delivery ends within Config.Timeout and reads at most 64 KiB of headers and 64 KiB of body.
//   - No error text holds the target's path, query or secret, nor an address that a name resolved to. What a
//     receiver sends adds at most 200 bytes to it.
//
// # Limits
//
// A webhook may arrive more than once: an answer can be lost after the receiver accepted it. Any port of a public
// address may be chosen. A network that translates a public IPv6 prefix of its own to private IPv4 addresses (NAT64
// with a prefix other than 64:ff9b::/96) has to refuse these addresses itself.
//
// The libraries sign a webhook or judge an address, and none does both for a delivery. The command line checks
// addresses by it too, so it is no part of fulfillment.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	defaultTimeout = 10 * time.Second
	maxRetryAfter  = 24 * time.Hour
	maxHeaderBytes = 64 << 10
	maxBodyBytes   = 64 << 10
	maxErrorBytes  = 200
)

// Config says where webhooks may go and how long a delivery may take.
type Config struct {
	// AllowCIDRs are addresses allowed besides public ones, by plain http too:
	// receivers in the operator's own network, and tests.
	AllowCIDRs []netip.Prefix
	// Timeout bounds one delivery, from resolving the name to the last byte
	// that is read. 0 means 10 seconds.
	Timeout time.Duration
	// Now is the clock of the signatures. It is required.
	Now func() time.Time
}

// Sender delivers webhooks. It is safe for concurrent use.
type Sender struct {
	cfg       Config
	secure    *tls.Dialer
	transport *http.Transport
}

// Message is one event for one receiver.
type Message struct {
	// URL is the target, as [CheckURL] accepts it.
	URL string
	// Secrets are the receiver's, whsec_ and base64, the newest first. The
	// delivery is signed by each of them.
	Secrets []string
	// ID is the event's, the same at each delivery.
	ID string
	// Body is JSON.
	Body []byte
}

// New returns a sender.
func New(cfg Config) *Sender { return newSender(cfg, &net.Dialer{}) }

func newSender(cfg Config, dialer *net.Dialer) *Sender {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	dialer = new(*dialer)
	dialer.Timeout = cfg.Timeout // of the handshake too: the end of a delivery does not end its dial
	plain := guarded(dialer, httpGuard(cfg.AllowCIDRs), "the target is neither https nor in WEBHOOK_ALLOW_CIDRS")
	secure := &tls.Dialer{NetDialer: guarded(dialer, httpsGuard(cfg.AllowCIDRs),
		"the target leads to an address that is neither public nor in WEBHOOK_ALLOW_CIDRS")}
	return &Sender{cfg: cfg, secure: secure, transport: &http.Transport{
		// Proxy stays nil: a proxy would dial for us, unguarded.
		DialContext:            plain.DialContext,  // of http targets
		DialTLSContext:         secure.DialContext, // of https targets
		MaxIdleConnsPerHost:    64,
		MaxIdleConns:           256,
		IdleConnTimeout:        30 * time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true,
	}}
}

// guarded dials only what guard permits, as dialer does. Its Control runs after the name was resolved and before the
// socket connects, and an error prevents the connection. The guard's own error is dropped: it holds the address.
func guarded(dialer *net.Dialer, guard *ssrf.Guardian, refusal string) *net.Dialer {
	d, next := *dialer, dialer.Control
	d.Control = func(network, address string, socket syscall.RawConn) error {
		switch {
		case guard.Safe(network, address, socket) != nil:
			return &TargetError{Reason: refusal}
		case next != nil:
			return next(network, address, socket)
		}
		return nil
	}
	return &d
}

// Deliver sends the webhook once. It returns nil when the receiver has answered 2xx, else the error of ctx, or a
// [TargetError], which repeats until the target or its secret changes, or a [DeliveryError]: then the receiver may
// have accepted the webhook, and a later attempt may succeed.
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
	within, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := s.sign(within, target, m)
	if err != nil {
		return err
	}
	res, err := s.transport.RoundTrip(req) // an http.Client would read the target of a redirect
	if err != nil {
		return s.unanswered(ctx, within, err)
	}
	// A body that is left unread costs the connection, and no more.
	_, _ = io.CopyN(io.Discard, res.Body, maxBodyBytes)
	_ = res.Body.Close()
	if res.StatusCode/100 == 2 {
		return nil
	}
	return &DeliveryError{StatusCode: res.StatusCode, RetryAfter: retryAfter(res.Header), Err: errors.New(http.StatusText(res.StatusCode))}
}

func (s *Sender) sign(ctx context.Context, target *url.URL, m Message) (*http.Request, error) {
	if m.ID == "" || !visible(m.ID) {
		return nil, &TargetError{Reason: "the webhook has no id of visible ASCII characters"}
	}
	at := s.cfg.Now()
	signatures, err := signatures(m, at)
	if err != nil {
		return nil, err
	}
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(m.Body)) // parse read it
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "payonce")
	req.Header.Set(standardwebhooks.HeaderWebhookID, m.ID)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signatures)
	return req, nil
}

// signatures returns one signature for each secret: a receiver that knows any one
// of them can verify the webhook. An unusable secret is left out if another signs.
func signatures(m Message, at time.Time) (string, error) {
	var list []string
	for _, secret := range m.Secrets {
		if CheckSecret(secret) == nil {
			signer, _ := standardwebhooks.NewWebhook(secret) // it reads what was checked
			signature, _ := signer.Sign(m.ID, at, m.Body)    // has no error
			list = append(list, signature)
		}
	}
	if len(list) == 0 {
		return "", &TargetError{Reason: "the webhook has no secret that is whsec_ and 24 to 64 bytes in base64"}
	}
	return strings.Join(list, " "), nil
}

// CheckSecret returns a [TargetError], without the secret in its text, unless the
// secret is as Standard Webhooks asks for.
func CheckSecret(secret string) error {
	text, named := strings.CutPrefix(secret, "whsec_")
	key, err := base64.StdEncoding.DecodeString(text)
	if !named || err != nil || !visible(secret) || len(key) < 24 || len(key) > 64 { // base64 permits line ends
		return &TargetError{Reason: "a webhook secret is whsec_ and 24 to 64 bytes in base64, as openssl rand -base64 32 prints them"}
	}
	return nil
}

// unanswered returns the error of a delivery without an answer. It wraps nothing: a
// time-out of the network is a context.DeadlineExceeded, but the caller's context has not
// ended.
func (s *Sender) unanswered(ctx, within context.Context, err error) error {
	if refused, ok := errors.AsType[*TargetError](err); ok {
		return refused
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	why := err.Error()
	if op, ok := errors.AsType[*net.OpError](err); ok { // its own text holds the address
		why = op.Op + ": " + op.Err.Error()
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		why = "the host name does not resolve"
	}
	if within.Err() != nil {
		why = fmt.Sprintf("no answer within %s", s.cfg.Timeout)
	}
	return &DeliveryError{Err: errors.New(strings.ToValidUTF8(why[:min(len(why), maxErrorBytes)], ""))}
}

// TargetError reports that a webhook was refused before anything was sent: its
// target is no http URL, or leads to an address that is neither public nor
// allowed, or its secret cannot sign.
type TargetError struct {
	// Reason is a sentence for the merchant, without URL, address or secret.
	Reason string
}

func (e *TargetError) Error() string { return "webhook target refused: " + e.Reason }

// DeliveryError reports that the receiver did not confirm the webhook. It may have
// accepted it.
type DeliveryError struct {
	// StatusCode of the answer, 0 if there was none.
	StatusCode int
	// RetryAfter is how many seconds the receiver asks to wait: at most a day, 0 if it
	// does not say.
	RetryAfter time.Duration
	// Err is the cause, as a text alone: it wraps no error.
	Err error
}

func (e *DeliveryError) Error() string {
	if e.StatusCode == 0 {
		return "webhook not answered: " + e.Err.Error()
	}
	return fmt.Sprintf("webhook answered %d: %s", e.StatusCode, e.Err)
}

// retryAfter reads the seconds of Retry-After, bounded by a day; 0 if it does not say.
func retryAfter(h http.Header) time.Duration {
	seconds, _ := strconv.ParseUint(h.Get("Retry-After"), 10, 64) // 0 of no number, the most of one that is too large
	return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
}
