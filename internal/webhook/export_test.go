package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"syscall"
)

// NewWithResolver returns a sender that resolves names by r.
func NewWithResolver(cfg Config, r *net.Resolver) *Sender {
	return newSender(cfg, &net.Dialer{Resolver: r})
}

// NewCounting returns a sender that resolves names by r, calls dialed with each address
// that it would connect to, and connects to none.
func NewCounting(cfg Config, r *net.Resolver, dialed func(address string)) *Sender {
	return newSender(cfg, &net.Dialer{Resolver: r, Control: func(_, address string, _ syscall.RawConn) error {
		dialed(address)
		return errors.New("only counted")
	}})
}

// Trust makes the sender accept certificates of these authorities.
func (s *Sender) Trust(roots *x509.CertPool) {
	s.secure.Config = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}
