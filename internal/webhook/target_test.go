package webhook_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/webhook"
)

func TestCheckURL_accepts(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"https://shop.example/webhooks",
		"https://shop.example:8443/webhooks?token=a%20b",
		"https://shop.example.",
		"https://xn--bcher-kva.example/",
		"https://8.8.8.8/",
		"https://[2606:4700:4700::1111]:443/",
		"https://3com.example/",
		"https://a_b.example/",
		"http://127.0.0.1:8090/shop/webhooks", // plain and private: judged when dialed
		"http://sandbox:8090/shop/webhooks",
	} {
		if err := webhook.CheckURL(target); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestCheckURL_refuses(t *testing.T) {
	t.Parallel()
	for _, target := range []string{
		"", "shop.example", "/webhooks", "//shop.example/", "https:shop.example", "https://", "https:///path", "https://:443/",
		"ftp://shop.example/", "file:///etc/passwd", "gopher://shop.example/", "javascript:alert(1)", "unix:///run/docker.sock", "HTTPX://shop.example",
		"https://me@shop.example/", "https://me:hush@shop.example/", "https://shop.example@127.0.0.1/", "https://@shop.example/",
		"https://shop.example/#part", "https://shop.example/#", "https://shop.example:0/", "https://shop.example:65536/",
		"https://shop.example:-1/", "https://shop.example:/", "https://shop.example:http/",
		"https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/", "https://0x7f.0.0.1/", "https://127.0.0.1./", "https://1.2.3.4.5/",
		"https://[::ffff:127.0.0.1]/", "https://[::ffff:8.8.8.8]/", "https://[fe80::1%25eth0]/", "https://[fe80::1%eth0]/", "https://[::1", "https://[]/",
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

// hostile are targets that a merchant may try. {port} is the port of a listener
// on loopback.
func hostile() []string {
	return []string{
		// Ourselves.
		"http://127.0.0.1:{port}/", "https://127.0.0.1:{port}/", "https://127.0.0.2:{port}/", "https://127.255.255.254:{port}/",
		"https://0.0.0.0:{port}/", "https://0.1.2.3:{port}/",
		"https://[::1]:{port}/", "http://[::1]:{port}/", "https://[::]:{port}/", "https://[0:0:0:0:0:0:0:1]:{port}/",
		// Ourselves in disguise.
		"https://127.1:{port}/", "https://2130706433:{port}/", "https://0x7f000001:{port}/", "https://0177.0.0.1:{port}/", "https://017700000001:{port}/",
		"https://[::ffff:127.0.0.1]:{port}/", "https://[::ffff:7f00:1]:{port}/", "https://[::127.0.0.1]:{port}/", "https://[64:ff9b::127.0.0.1]:{port}/",
		"https://[64:ff9b:1::7f00:1]:{port}/", "https://[2002:7f00:1::]:{port}/", "https://[2001:0:7f00:1::]:{port}/", "https://[::ffff:0:127.0.0.1]:{port}/",
		"https://１２７.0.0.1:{port}/", "https://127。0。0。1:{port}/", "https://user@127.0.0.1:{port}/", "https://shop.example@127.0.0.1:{port}/",
		"https://127.0.0.1:{port}#@shop.example/", "https://shop.example\\@127.0.0.1:{port}/",
		// The neighbors.
		"https://10.0.0.1:{port}/", "https://172.16.0.1:{port}/", "https://172.31.255.255:{port}/", "https://192.168.1.1:{port}/", "https://100.64.0.1:{port}/",
		"https://[fc00::1]:{port}/", "https://[fd12:3456:789a::1]:{port}/", "https://[fe80::1]:{port}/", "https://[fec0::1]:{port}/",
		// The cloud's metadata.
		"http://169.254.169.254/latest/meta-data/", "https://169.254.169.254/", "https://[fd00:ec2::254]/", "https://100.100.100.200/",
		"https://192.0.0.192/", "https://168.63.129.16/", "https://[fe80::a9fe:a9fe]/",
		// Everybody and nobody.
		"https://224.0.0.1:{port}/", "https://239.255.255.250:1900/", "https://255.255.255.255:{port}/", "https://240.0.0.1:{port}/", "https://[ff02::1]:{port}/",
		"https://192.0.2.1:{port}/", "https://198.51.100.1:{port}/", "https://203.0.113.1:{port}/", "https://198.18.0.1:{port}/", "https://192.88.99.1:{port}/",
		"https://[2001:db8::1]:{port}/", "https://[3fff::1]:{port}/", "https://[100::1]:{port}/", "https://[5f00::1]:{port}/", "https://[4000::1]:{port}/",
		// Public, in the clear.
		"http://8.8.8.8:{port}/", "http://[2606:4700:4700::1111]:{port}/",
		// No web at all.
		"file:///etc/passwd", "gopher://127.0.0.1:{port}/_x", "ftp://127.0.0.1:{port}/", "unix:///run/docker.sock", "",
	}
}

func TestDeliver_refuses_hostile_targets_without_a_connection(t *testing.T) {
	t.Parallel()
	if len(hostile()) < 40 {
		t.Fatalf("%d hostile targets, want 40 or more", len(hostile()))
	}
	ok := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	four := newReceiver(t, "127.0.0.1:0", ok)
	_, port, _ := strings.Cut(strings.TrimPrefix(four.URL, "http://"), ":")
	s := newSender(t, webhook.Config{Timeout: await.Stall})

	refused := 0
	for _, target := range hostile() {
		target = strings.ReplaceAll(target, "{port}", port)
		if err := s.Deliver(t.Context(), messageTo(target)); kinds(err) != "target" {
			t.Errorf("%s: %v, want it refused", target, err)
			continue
		}
		refused++
	}
	t.Logf("%d hostile targets, %d refused, %d dialed", len(hostile()), refused, four.dialed.Load())
	if got := four.dialed.Load(); got != 0 {
		t.Errorf("%d connections were opened, want none", got)
	}
	// The listener does answer those that are allowed.
	open := newSender(t, webhook.Config{AllowCIDRs: loopback()})
	if err := open.Deliver(t.Context(), messageTo(four.URL)); err != nil || four.dialed.Load() != 1 {
		t.Errorf("allowed: %v after %d connections, want one", err, four.dialed.Load())
	}
}

// No socket is even connected to a hostile target, wherever it would lead, and
// whatever name leads there.
func TestDeliver_dials_no_hostile_target(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var dialed []string
	count := func(address string) {
		mu.Lock()
		defer mu.Unlock()
		dialed = append(dialed, address)
	}
	names := map[string][]string{"public.shop.example": {"8.8.8.8"}, "allowed.shop.example": {"10.1.2.3"}}
	var targets []string
	for _, target := range hostile() {
		target = strings.ReplaceAll(target, "{port}", "443")
		targets = append(targets, target)
		u, err := url.Parse(target)
		if err != nil {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil && u.Scheme == "https" {
			name := fmt.Sprintf("n%d.shop.example", len(names))
			names[name] = []string{a.String()}
			targets = append(targets, "https://"+name+"/", "https://"+name+".:8443/")
		}
	}
	cfg := webhook.Config{Now: time.Now, Timeout: await.Stall}
	s := webhook.NewCounting(cfg, newZone(names).resolver(), count)
	t.Cleanup(s.Close)
	for _, target := range targets {
		if err := s.Deliver(t.Context(), messageTo(target)); kinds(err) != "target" {
			t.Errorf("%s: %v, want it refused", target, err)
		}
		if webhook.CheckURL(target) == nil && webhook.IsPublic(target) && !strings.Contains(target, "shop.example") {
			t.Errorf("%s passes for public at registration", target)
		}
	}
	t.Logf("%d hostile targets, %d dialed", len(targets), len(dialed))
	if len(targets) < 100 || len(dialed) != 0 {
		t.Errorf("of %d targets these were dialed: %q", len(targets), dialed)
	}

	cfg.AllowCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.2.0/24")}
	open := webhook.NewCounting(cfg, newZone(names).resolver(), count)
	t.Cleanup(open.Close)
	for _, target := range []string{
		"https://public.shop.example/", "https://8.8.4.4:8443/", "https://[2606:4700:4700::1111]/", "https://allowed.shop.example/", "http://10.1.2.255/",
		"https://10.1.3.0/", "http://10.1.1.255/", "https://10.1.2.3.nip.example/", "http://8.8.8.8/", // and these are not
	} {
		_ = open.Deliver(t.Context(), messageTo(target)) // none is connected, so none is delivered
	}
	want := []string{"8.8.8.8:443", "8.8.4.4:8443", "[2606:4700:4700::1111]:443", "10.1.2.3:443", "10.1.2.255:80"}
	if diff := cmp.Diff(want, dialed); diff != "" {
		t.Errorf("dialed of those that are allowed (-want +got):\n%s", diff)
	}
}

func TestIsPublic(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]bool{
		"https://shop.example/": true, "https://8.8.8.8/": true, "https://[2606:4700:4700::1111]/": true,
		"http://shop.example/": false, "http://8.8.8.8/": false, "https://127.0.0.1/": false, "https://[::1]/": false,
		"https://169.254.169.254/": false, "https://[fd00:ec2::254]/": false, "https://127.1/": false, "": false,
	} {
		if got := webhook.IsPublic(target); got != want {
			t.Errorf("%s is public: %t", target, got)
		}
	}
}

func TestDeliver_over_IPv6_is_guarded_too(t *testing.T) {
	t.Parallel()
	six := newReceiver(t, "[::1]:0", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	if err := newSender(t, webhook.Config{}).Deliver(t.Context(), messageTo(six.URL)); kinds(err) != "target" || six.dialed.Load() != 0 {
		t.Errorf("%v after %d connections, want it refused without any", err, six.dialed.Load())
	}
	if err := newSender(t, webhook.Config{AllowCIDRs: loopback()}).Deliver(t.Context(), messageTo(six.URL)); err != nil {
		t.Errorf("allowed: %v", err)
	}
}

// A name is judged by the address that is dialed, whatever it was before.
func TestDeliver_judges_names_by_the_address_they_lead_to(t *testing.T) {
	t.Parallel()
	names := map[string][]string{"localhost": {"127.0.0.1"}, "LOCALHOST.": {"127.0.0.1"}, "metadata.google.internal": {"169.254.169.254"}}
	for i, address := range []string{
		"127.0.0.1", "10.1.2.3", "169.254.169.254", "100.64.0.1", "0.0.0.0", "192.168.0.1", "224.0.0.1",
		"::1", "fd00:ec2::254", "fe80::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "2002:a00:1::",
	} {
		names[fmt.Sprintf("n%d.shop.example", i)] = []string{address}
	}
	s := webhook.NewWithResolver(webhook.Config{Now: time.Now, Timeout: await.Stall}, newZone(names).resolver())
	t.Cleanup(s.Close)
	for name, address := range names {
		target := "https://" + name + "/hook"
		if err := webhook.CheckURL(target); err != nil {
			t.Errorf("%s: %v", target, err)
		}
		err := s.Deliver(t.Context(), messageTo(target))
		if kinds(err) != "target" {
			t.Errorf("%s at %s: %v, want it refused", name, address, err)
		}
		if err != nil && strings.Contains(err.Error(), address[0]) {
			t.Errorf("%s: the error tells the address: %v", name, err)
		}
	}
}

func TestDeliver_is_not_fooled_by_a_name_that_moves(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close") // so that the next delivery dials
	})
	_, port, _ := strings.Cut(strings.TrimPrefix(r.URL, "http://"), ":")
	allowed := []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	z := newZone(map[string][]string{"moves.shop.example": {"127.0.0.1", "127.0.0.2"}})
	s := webhook.NewWithResolver(webhook.Config{Now: time.Now, AllowCIDRs: allowed}, z.resolver())
	t.Cleanup(s.Close)

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

func TestDeliver_to_a_name_that_does_not_exist_may_be_tried_again(t *testing.T) {
	t.Parallel()
	s := webhook.NewWithResolver(webhook.Config{Now: time.Now, Timeout: await.Stall}, newZone(nil).resolver())
	t.Cleanup(s.Close)
	err := s.Deliver(t.Context(), messageTo("https://gone.shop.example/?token=hush"))
	if kinds(err) != "delivery" || strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "gone") {
		t.Errorf("%v, want a delivery error that does not quote the target", err)
	}
}

func TestConfig_AllowCIDRs(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, "127.0.0.1:0", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for name, tc := range map[string]struct {
		allow []netip.Prefix
		want  string
	}{
		"the address":             {[]netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, ""},
		"the address, as IPv6":    {[]netip.Prefix{netip.MustParsePrefix("::ffff:127.0.0.0/104")}, ""},
		"one of several networks": {[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8")}, ""},
		"another network":         {[]netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}, "target"},
		"nothing":                 {nil, "target"},
		"no prefix":               {[]netip.Prefix{{}}, "target"},
	} {
		if err := newSender(t, webhook.Config{AllowCIDRs: tc.allow}).Deliver(t.Context(), messageTo(r.URL)); kinds(err) != tc.want {
			t.Errorf("%s: error is %v, want kind %q", name, err, tc.want)
		}
	}
}
