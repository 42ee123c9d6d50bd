package chaos

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// client calls the HTTP API of the daemons, as an admin in the namespace of the observer.
type client struct{ http *http.Client }

func newClient(w *network, certificates string) (*client, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(certificates, "tls.crt"), filepath.Join(certificates, "tls.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(certificates, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	dial := func(ctx context.Context, kind, address string) (c net.Conn, err error) {
		enterErr := w.hub.Enter(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, kind, address)
			return nil
		})
		if enterErr != nil {
			return nil, enterErr
		}
		return c, err
	}
	return &client{&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool},
	}}}, nil
}

func (c *client) get(url string) ([]byte, error) {
	response, err := c.http.Get(url)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, b)
	}
	return b, err
}

// status is what the observer reads of the status document.
type status struct {
	Node   string
	Time   time.Time
	Config struct {
		Digest, Allowed, Fault, Skew string
		Errors                       []string
	}
	Peers []struct {
		Node     string
		Problem  string
		Responds bool
	}
	Disks []struct {
		Node, Name, Problem, Disputed string
		ReadOnly                      bool
	}
	Images []imageStatus
	Plan   struct {
		Actions []struct {
			Op, Image, UUID, Node, Disk string
			Reason                      struct{ Code, Text string }
		}
	}
}

type imageStatus struct {
	Name, UUID     string
	Declared       bool
	Desired, Ready int
	Message        string
	Copies         []struct {
		Node, Disk, State, Message string
		Leaving                    bool
	}
}

func (c *client) status(n *node) (status, error) {
	b, err := c.get(n.url() + "/v1/status")
	var s status
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	return s, err
}

// figures is what a daemon needs of its machine.
type figures struct {
	goroutines, descriptors int
	memory                  int64 // resident
	lastRound               time.Time
}

func (f figures) String() string {
	return fmt.Sprintf("%d MiB, %d descriptors, %d goroutines", f.memory/mib, f.descriptors, f.goroutines)
}

func (c *client) figures(n *node) (figures, error) {
	b, err := c.get(n.url() + "/metrics")
	if err != nil {
		return figures{}, err
	}
	var f figures
	for line := range strings.Lines(string(b)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			continue // a comment
		}
		switch name {
		case "go_goroutines":
			f.goroutines = int(value)
		case "process_open_fds":
			f.descriptors = int(value)
		case "process_resident_memory_bytes":
			f.memory = int64(value)
		case "backing_image_manager_last_round_timestamp_seconds":
			f.lastRound = time.UnixMilli(int64(value * 1000))
		}
	}
	return f, nil
}
