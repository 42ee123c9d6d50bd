package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// adminOrganization is in the subject of a certificate with the role admin.
const adminOrganization = "backing-image-manager:admin"

// tlsFlags name the files of a certificate, its key, and the authority that
// vouches for all others.
type tlsFlags struct{ cert, key, ca string }

func (f *tlsFlags) add(cmd *cobra.Command, cert, ca string) {
	cmd.Flags().StringVar(&f.cert, "tls-cert", "", cert)
	cmd.Flags().StringVar(&f.key, "tls-key", "", "`FILE` with the key of --tls-cert, as PEM")
	cmd.Flags().StringVar(&f.ca, "tls-ca", "", ca)
}

func (f tlsFlags) given() bool { return f != tlsFlags{} }

// complete asks for what a daemon needs: it presents itself to callers and to peers,
// and knows them by their authority.
func (f tlsFlags) complete() error {
	if f.given() && (f.cert == "" || f.key == "" || f.ca == "") {
		return errors.New("--tls-cert, --tls-key and --tls-ca belong together: give all three or none")
	}
	return nil
}

// identity is what the files of TLS said at one time. It is not changed any more.
type identity struct {
	authorities []*x509.Certificate
	server      *tls.Config // nil without a certificate
	client      *tls.Config
}

// newIdentity reads the files. Without a certificate it is one of a caller that
// only checks whom it asks.
func newIdentity(log *slog.Logger, f tlsFlags) (*reloaded[*identity], error) {
	return newReloaded(log, "certificate", func(contents [][]byte) (*identity, error) {
		return parseIdentity(f, contents[0], contents[1], contents[2])
	}, f.cert, f.key, f.ca)
}

func parseIdentity(f tlsFlags, cert, key, ca []byte) (*identity, error) {
	i := &identity{client: tlsConfig()}
	if f.ca != "" {
		var err error
		if i.authorities, err = parseCertificates(ca); err != nil {
			return nil, fmt.Errorf("--tls-ca %s: %w", f.ca, err)
		}
		i.client.RootCAs = pool(i.authorities)
	}
	if f.cert == "" {
		return i, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s with --tls-key %s: %w", f.cert, f.key, err)
	}
	if err := usable(pair.Leaf); err != nil {
		return nil, fmt.Errorf("--tls-cert %s: %w", f.cert, err)
	}
	// Always sent: a server that does not know its authority says so.
	i.client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	i.server = tlsConfig()
	i.server.Certificates = []tls.Certificate{pair}
	i.server.ClientAuth = tls.VerifyClientCertIfGiven
	i.server.ClientCAs = pool(i.authorities)
	return i, nil
}

// tlsConfig has what is the same on both sides. HTTP/2 would put all transfers of a
// peer on one connection. A session that is resumed would not show that the files
// have changed.
func tlsConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true}
}

// usable refuses a certificate that no daemon would accept of a caller. That it is
// good for a server its peers find out.
func usable(leaf *x509.Certificate) error {
	if end := leaf.NotAfter; time.Now().After(end) {
		return fmt.Errorf("it is not valid any more since %s", end.UTC().Format(time.RFC3339))
	}
	uses := leaf.ExtKeyUsage
	if len(uses)+len(leaf.UnknownExtKeyUsage) == 0 || slices.Contains(uses, x509.ExtKeyUsageAny) || slices.Contains(uses, x509.ExtKeyUsageClientAuth) {
		return nil
	}
	return errors.New("its extended key usage has no clientAuth: it is presented to other daemons too")
}

func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var found []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return nil, errors.New("there is no certificate in it")
	}
	return found, nil
}

func pool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certificates {
		p.AddCert(c)
	}
	return p
}

// role returns the role that the certificate of a caller gives now: a connection
// may live longer than the certificate, or than the trust in its authority.
func (i *identity) role(s *tls.ConnectionState, now time.Time) role {
	if s == nil || !slices.ContainsFunc(s.VerifiedChains, func(chain []*x509.Certificate) bool { return i.trusts(chain, now) }) {
		return nobody
	}
	if slices.Contains(s.PeerCertificates[0].Subject.Organization, adminOrganization) {
		return adminRole
	}
	return peerRole
}

func (i *identity) trusts(chain []*x509.Certificate, now time.Time) bool {
	expired := func(c *x509.Certificate) bool { return now.After(c.NotAfter) }
	root := chain[len(chain)-1]
	return !slices.ContainsFunc(chain, expired) && slices.ContainsFunc(i.authorities, root.Equal)
}
