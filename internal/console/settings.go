package console

import (
	"fmt"

	"github.com/payonce/payonce/internal/program"
)

// Settings are read from the environment.
type Settings struct {
	// Loopback address on which the console listens. payonce demo takes another port where this one
	// is in use.
	Addr string `env:"CONSOLE_ADDR" envDefault:"127.0.0.1:8088"`
}

// Check refuses an address that other machines reach.
func (s Settings) Check() error {
	if program.Local(s.Addr) {
		return nil
	}
	return fmt.Errorf("CONSOLE_ADDR is %s, but the console asks for no key, so it listens on a loopback address alone: "+
		"leave it at 127.0.0.1:8088, and forward that port with ssh -L 8088:127.0.0.1:8088 HOST or kubectl port-forward POD 8088", s.Addr)
}
