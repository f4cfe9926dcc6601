package webhook_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/payonce/payonce/internal/testrun"
	"github.com/payonce/payonce/internal/webhook"
)

// TestCheckURL_refusesWhatIsReadInTwoWays, and accepts http and https targets. Hostile ones are in
// TestDeliver_dialsNoHostileTarget.
func TestCheckURL_refusesWhatIsReadInTwoWays(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"https://shop.example/webhooks", "https://shop.example:8443/webhooks?token=a%20b", "https://shop.example.", "https://xn--bcher-kva.example/",
		"https://8.8.8.8/", "https://[2606:4700:4700::1111]:443/", "https://3com.example/", "https://a_b.example/",
		"http://127.0.0.1:8090/shop/webhooks", "http://sandbox:8090/shop/webhooks", // plain and private: judged when dialed
	} {
		if err := webhook.CheckURL(target); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
	for _, target := range []string{
		"", "shop.example", "/webhooks", "//shop.example/", "https:shop.example", "https://", "https:///path", "https://:443/",
		"ftp://shop.example/", "file:///etc/passwd", "gopher://shop.example/", "javascript:alert(1)", "unix:///run/docker.sock", "HTTPX://shop.example",
		"https://me@shop.example/", "https://me:hush@shop.example/", "https://shop.example@127.0.0.1/", "https://@shop.example/",
		"https://shop.example/#part", "https://shop.example/#", "https://shop.example:0/", "https://shop.example:65536/",
		"https://shop.example:-1/", "https://shop.example:/", "https://shop.example:http/",
		"https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/", "https://017700000001/", "https://0x7f.0.0.1/",
		"https://127.0.0.1./", "https://1.2.3.4.5/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[::ffff:8.8.8.8]/",
		"https://[fe80::1%25eth0]/", "https://[fe80::1%eth0]/", "https://[::1", "https://[]/",
		"https://１２７.0.0.1/", "https://127。0。0。1/", "https://bücher.example/", "https://shop%2eexample/", "https://shop example/", "https://shop.example/a b",
		"https://shop.example\\@127.0.0.1/", "https://shop.example\r\nHost: x/", "https://shop..example/", "https://.example/", "https://sh*p.example/",
		"https://" + strings.Repeat("a.", 130) + "example/", "https://shop.example/" + strings.Repeat("a", 2048),
	} {
		err := webhook.CheckURL(target)
		if _, ok := errors.AsType[*webhook.TargetError](err); !ok {
			t.Errorf("%q: %v, want it refused", target, err)
			continue
		}
		if strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "shop.example") {
			t.Errorf("%q: the error quotes it: %v", target, err)
		}
	}
}

// hostile returns targets that a merchant may try.
func hostile() []string {
	return []string{
		// The worker itself.
		"http://127.0.0.1:443/", "https://127.0.0.1:443/", "https://127.0.0.2:443/", "https://127.255.255.254:443/",
		"https://0.0.0.0:443/", "https://0.1.2.3:443/",
		"https://[::1]:443/", "http://[::1]:443/", "https://[::]:443/", "https://[0:0:0:0:0:0:0:1]:443/",
		// The worker itself, within IPv6.
		"https://[::127.0.0.1]:443/", "https://[64:ff9b::127.0.0.1]:443/", "https://[64:ff9b:1::7f00:1]:443/", "https://[2002:7f00:1::]:443/",
		"https://[2001:0:7f00:1::]:443/", "https://[::ffff:0:127.0.0.1]:443/",
		// The private network.
		"https://10.0.0.1:443/", "https://172.16.0.1:443/", "https://172.31.255.255:443/", "https://192.168.1.1:443/", "https://100.64.0.1:443/",
		"https://[fc00::1]:443/", "https://[fd12:3456:789a::1]:443/", "https://[fe80::1]:443/", "https://[fec0::1]:443/",
		// The cloud's metadata service.
		"http://169.254.169.254/latest/meta-data/", "https://169.254.169.254/", "https://[fd00:ec2::254]/", "https://100.100.100.200/",
		"https://192.0.0.192/", "https://168.63.129.16/", "https://[fe80::a9fe:a9fe]/",
		// Multicast, broadcast, reserved.
		"https://224.0.0.1:443/", "https://239.255.255.250:1900/", "https://255.255.255.255:443/", "https://240.0.0.1:443/", "https://[ff02::1]:443/",
		"https://192.0.2.1:443/", "https://198.51.100.1:443/", "https://203.0.113.1:443/", "https://198.18.0.1:443/", "https://192.88.99.1:443/",
		"https://[2001:db8::1]:443/", "https://[3fff::1]:443/", "https://[100::1]:443/", "https://[5f00::1]:443/", "https://[4000::1]:443/",
		// Public, over plain http.
		"http://8.8.8.8:443/", "http://[2606:4700:4700::1111]:443/",
		// What may not be registered.
		"https://127.1:443/", "https://user@127.0.0.1:443/", "gopher://127.0.0.1:443/_x", "",
	}
}

// TestDeliver_dialsNoHostileTarget: no socket connects to a hostile target,
// whether the URL holds the address or a name resolves to it.
func TestDeliver_dialsNoHostileTarget(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var dialed []string
	count := func(_, address string, _ syscall.RawConn) error {
		mu.Lock()
		defer mu.Unlock()
		dialed = append(dialed, address)
		return errors.New("only counted")
	}
	names := map[string][]string{
		"public.shop.example": {"8.8.8.8"}, "allowed.shop.example": {"10.1.2.3"},
		"localhost": {"127.0.0.1"}, "LOCALHOST.": {"127.0.0.1"}, "metadata.google.internal": {"169.254.169.254"},
		"mapped.shop.example": {"::ffff:127.0.0.1"}, "translated.shop.example": {"64:ff9b::a00:1"},
	}
	targets := []string{
		"https://localhost/", "https://LOCALHOST./", "https://metadata.google.internal/",
		"https://mapped.shop.example/", "https://translated.shop.example/",
	}
	for _, target := range hostile() {
		targets = append(targets, target)
		if u, err := url.Parse(target); err == nil && u.Scheme == "https" {
			if a, err := netip.ParseAddr(u.Hostname()); err == nil {
				name := fmt.Sprintf("n%d.shop.example", len(names))
				names[name] = []string{a.String()}
				targets = append(targets, "https://"+name+"/", "https://"+name+".:8443/")
			}
		}
	}
	cfg, counting := webhook.Config{Timeout: testrun.Stall}, &net.Dialer{Resolver: newZone(names).resolver(), Control: count}
	s := newSender(t, cfg, counting)
	for _, target := range targets {
		if err := s.Deliver(t.Context(), messageTo(target)); kinds(err) != "target" {
			t.Errorf("%s: %v, want it refused", target, err)
		} else if strings.ContainsAny(err.Error(), ".[]") {
			t.Errorf("%s: the error quotes a name or an address: %v", target, err)
		}
	}
	gone := s.Deliver(t.Context(), messageTo("https://gone.shop.example/?token=hush"))
	if kinds(gone) != "delivery" || strings.Contains(gone.Error(), "hush") || strings.Contains(gone.Error(), "gone") {
		t.Errorf("%v, want a delivery error that does not quote the target", gone)
	}
	if len(targets) < 100 || len(dialed) != 0 {
		t.Errorf("of %d targets these were dialed: %q", len(targets), dialed)
	}

	// Of several networks one is written as IPv6, and one is no prefix.
	cfg.AllowCIDRs = []netip.Prefix{netip.MustParsePrefix("192.168.7.0/24"), netip.MustParsePrefix("::ffff:10.1.2.0/120"), {}}
	open := newSender(t, cfg, counting)
	for _, target := range []string{
		"https://public.shop.example/", "https://8.8.4.4:8443/", "https://[2606:4700:4700::1111]/", "https://allowed.shop.example/", "http://10.1.2.255/",
		"https://10.1.3.0/", "http://10.1.1.255/", "https://10.1.2.3.nip.example/", "http://8.8.8.8/", // and these are not
	} {
		_ = open.Deliver(t.Context(), messageTo(target)) // none is connected, so none is delivered
	}
	want := []string{"8.8.8.8:443", "8.8.4.4:8443", "[2606:4700:4700::1111]:443", "10.1.2.3:443", "10.1.2.255:80"}
	testrun.Same(t, "dialed of those that are allowed", want, dialed)
}

func TestDeliver_checksTheAddressAtEachDial(t *testing.T) {
	t.Parallel()
	r := startReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close") // so that the next delivery dials
	})
	_, port, _ := strings.Cut(strings.TrimPrefix(r.URL, "http://"), ":")
	allowed := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	z := newZone(map[string][]string{"moves.shop.example": {"127.0.0.1", "127.0.0.2"}})
	s := newSender(t, webhook.Config{AllowCIDRs: allowed}, &net.Dialer{Resolver: z.resolver()})
	target := messageTo("http://moves.shop.example:" + port + "/")
	if err := s.Deliver(t.Context(), target); err != nil {
		t.Fatalf("first delivery: %v", err)
	}
	if err := s.Deliver(t.Context(), target); kinds(err) != "target" {
		t.Errorf("second delivery: %v, want it refused", err)
	}
	if got := r.dialed.Load(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

func TestMain(m *testing.M) { testrun.Main(m) }

const (
	secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u"
	body   = `{"id":"evt_1","type":"charge.succeeded","data":{"amount":1999}}`
)

func messageTo(target string) webhook.Message {
	return webhook.Message{URL: target, Secrets: []string{secret}, ID: "evt_1", Body: []byte(body)}
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

func newSender(tb testing.TB, cfg webhook.Config, by *net.Dialer) *webhook.Sender {
	tb.Helper()
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return webhook.NewDialing(cfg, by)
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
