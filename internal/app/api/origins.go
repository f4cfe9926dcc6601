package api

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
)

// origins are the web pages' that may call the API from a browser, each as a
// browser writes it: a scheme, a host and perhaps a port, and nothing else. An
// origin that no browser sends would only look as if it were let in.
func (s Settings) origins() ([]string, error) {
	var origins []string
	for origin := range strings.SplitSeq(s.CORSOrigins, ",") {
		origin = strings.TrimSpace(origin)
		if origin == "" {
			continue
		}
		if strings.Contains(origin, "*") {
			return nil, errors.New("CORS_ORIGINS holds a *: name each origin whose pages may use an API key")
		}
		u, err := url.Parse(origin)
		if err != nil || !isOrigin(u, origin) {
			return nil, fmt.Errorf("CORS_ORIGINS holds %q: write an origin as browsers do, such as https://shop.example or https://shop.example:8443", origin)
		}
		if u.Scheme == "http" && !isLoopback(u.Hostname()) && !s.AllowPlaintext {
			return nil, fmt.Errorf("CORS_ORIGINS holds %s, whose pages anybody on the way can change: use https, or set ALLOW_PLAINTEXT=1 where the network is your own", origin)
		}
		origins = append(origins, origin)
	}
	return origins, nil
}

func isOrigin(u *url.URL, written string) bool {
	port, known := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	return known && u.Hostname() != "" && u.Port() != port &&
		!strings.HasSuffix(u.Host, ":") && !strings.ContainsAny(u.Host, " %") &&
		written == u.Scheme+"://"+strings.ToLower(u.Host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
