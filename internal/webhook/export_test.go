package webhook

import (
	"crypto/tls"
	"crypto/x509"
)

// NewDialing returns a sender that connects by a dialer.
var NewDialing = newSender

// Trust makes the sender accept certificates of these authorities.
func (s *Sender) Trust(roots *x509.CertPool) {
	s.secure.Config = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
}
