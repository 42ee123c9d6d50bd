package auth

import (
	"crypto/tls"
	"log/slog"
	"time"
)

// Credentials are the tokens and the TLS files of a process. The zero value is empty. They are safe
// for concurrent use.
type Credentials struct {
	tokens   *reloader[tokens]    // nil: no token file
	identity *reloader[*identity] // nil: no TLS files
}

// Load reads the token file ("": none) and the TLS files. If the files change later, they are read again. Each change
// is logged, whether it is valid or not.
func Load(log *slog.Logger, tokenFile string, files TLSFiles) (c Credentials, err error) {
	if tokenFile != "" {
		if c.tokens, err = loadTokens(log, tokenFile); err != nil {
			return Credentials{}, err
		}
	}
	if files.Given() {
		if c.identity, err = loadIdentity(log, files); err != nil {
			return Credentials{}, err
		}
	}
	return c, nil
}

func (c Credentials) empty() bool { return c.tokens == nil && c.identity == nil }

// CertificateExpiry returns when the current certificate of this process stops being valid: when the certificate or the
// authority that signed it expires. ok is false without a certificate.
func (c Credentials) CertificateExpiry() (at time.Time, ok bool) {
	if c.identity == nil {
		return time.Time{}, false
	}
	at = c.identity.current().expires
	return at, !at.IsZero()
}

// ForPeers returns the credentials that a daemon sends to other daemons: the token with the lowest
// role, and the TLS configuration. Both functions return the current value at each call. A function
// is nil if there is no such credential.
func (c Credentials) ForPeers() (token func() string, config func() *tls.Config) {
	if c.tokens != nil {
		token = func() string { return c.tokens.current().prefer(RolePeer) }
	}
	if c.identity != nil {
		config = func() *tls.Config { return c.identity.current().client }
	}
	return token, config
}

// ForCommand returns the credentials that a command sends to a daemon: the token with the highest
// role ("": none), and the TLS configuration, which is never nil.
func (c Credentials) ForCommand() (token string, config *tls.Config) {
	if c.tokens != nil {
		token = c.tokens.current().prefer(RoleAdmin)
	}
	if c.identity != nil {
		return token, c.identity.current().client
	}
	return token, baseTLS()
}
