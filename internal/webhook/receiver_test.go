package webhook_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/webhook"
)

const (
	secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u"
	body   = `{"id":"evt_1","type":"charge.succeeded","data":{"amount":1999}}`
)

func messageTo(url string) webhook.Message {
	return webhook.Message{URL: url, Secrets: []string{secret}, ID: "evt_1", Body: []byte(body)}
}

// receiver is a merchant's server. It counts connections and keeps the requests.
type receiver struct {
	*httptest.Server
	dialed atomic.Int64

	mu       sync.Mutex
	requests []received
}

type received struct {
	header http.Header
	body   []byte
}

// newReceiver answers by answer, by default with 204.
func newReceiver(tb testing.TB, answer http.HandlerFunc) *receiver {
	tb.Helper()
	r := &receiver{}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.requests = append(r.requests, received{req.Header, body})
		r.mu.Unlock()
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer(w, req)
	}))
	r.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			r.dialed.Add(1)
		}
	}
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	tb.Cleanup(r.Close)
	return r
}

func startReceiver(tb testing.TB, answer http.HandlerFunc) *receiver {
	tb.Helper()
	r := newReceiver(tb, answer)
	r.Start()
	return r
}

func (r *receiver) got() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests
}

func newSender(tb testing.TB, cfg webhook.Config) *webhook.Sender {
	tb.Helper()
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := webhook.New(cfg)
	tb.Cleanup(s.Close)
	return s
}

func loopback() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
}

// kinds names every kind that the error is of. There must be exactly one.
func kinds(err error) string {
	var all []string
	if _, ok := errors.AsType[*webhook.TargetError](err); ok {
		all = append(all, "target")
	}
	if _, ok := errors.AsType[*webhook.DeliveryError](err); ok {
		all = append(all, "delivery")
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		all = append(all, "context")
	}
	return strings.Join(all, " and ")
}

// zone is a name server in memory: for each name the addresses it answers, one
// after the other, the last one again and again.
type zone struct {
	mu      sync.Mutex
	names   map[string][]string
	queries map[string]int
}

func newZone(names map[string][]string) *zone {
	return &zone{names: names, queries: map[string]int{}}
}

func (z *zone) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go z.serve(server)
		return client, nil
	}}
}

func (z *zone) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	var size uint16
	for binary.Read(conn, binary.BigEndian, &size) == nil {
		query := make([]byte, size)
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply, err := z.answer(query)
		if err != nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

func (z *zone) answer(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	switch a, known := z.next(strings.TrimSuffix(q.Name.String(), "."), q.Type); {
	case !known:
		m.RCode = dnsmessage.RCodeNameError
	case a.Is4() && q.Type == dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: a.As4()}}}
	case !a.Is4() && q.Type == dnsmessage.TypeAAAA:
		m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}}}
	}
	return m.Pack()
}

// next returns the address that the name has now. A name moves on at each
// question for an IPv4 address; each lookup asks one.
func (z *zone) next(name string, kind dnsmessage.Type) (netip.Addr, bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	addresses, ok := z.names[name]
	if !ok {
		addresses, ok = z.names[name+"."]
	}
	if !ok {
		return netip.Addr{}, false
	}
	i := min(z.queries[name], len(addresses)-1)
	if kind == dnsmessage.TypeA {
		z.queries[name]++
	}
	return netip.MustParseAddr(addresses[i]), true
}

func TestMain(m *testing.M) { testrun.Main(m) }
