// Package freeport finds addresses for programs that tests start and that must know their address
// before they listen on it.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Address returns host and a port that is free, as HOST:PORT. The port is below 32768: from there on,
// the kernel gives ports to outgoing connections and to listeners with port 0, and one of them could
// have the port before the program listens on it.
func Address(host string) (string, error) {
	for attempt := 0; ; attempt++ {
		address := net.JoinHostPort(host, fmt.Sprint(10000+rand.IntN(32768-10000)))
		l, err := net.Listen("tcp", address)
		switch {
		case err == nil:
			return address, l.Close()
		case attempt == 100:
			return "", err
		}
	}
}
