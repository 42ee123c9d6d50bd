package manifest

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Handle is a CSI snapshotHandle of a backing image, in the words of Longhorn:
//
//	bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&KEY=VALUE…
//
// The values are escaped as in the query of an address, where "+" is a space.
type Handle struct {
	BackingImage string `json:"backingImage"`                   // never empty
	SourceType   string `json:"backingImageDataSourceType"`     // such as "download" or "export-from-volume"; never empty
	Checksum     string `json:"backingImageChecksum,omitempty"` // "" if it has none
	// Parameters are those of the source: "url", or "volume-name" and "export-type".
	Parameters map[string]string `json:"parameters"`
}

// The keys of a handle that are not parameters of the source.
const (
	handleImage    = "backingImage"
	handleType     = "backingImageDataSourceType"
	handleChecksum = "backingImageChecksum"
)

const handlePrefix = "bi://"

const handleHint = "write bi://backing?backingImage=NAME&backingImageDataSourceType=TYPE&…"

// maxHandle limits the bytes of an escaped handle.
const maxHandle = 10_000

// ParseHandle reads a handle. It accepts every handle that Longhorn reads without losing a
// part of it. What Longhorn ignores silently is an error: an invalid escape, a duplicate
// key, all text after a "#". The error has one line for each mistake. No line shows
// a value: it may contain a token.
//
// ParseHandle does not check the values. They are checked in the configuration.
func ParseHandle(text string) (Handle, error) {
	h, problems := parseHandle(text)
	if len(problems) > 0 {
		h = Handle{}
	}
	return h, joinProblems(problems)
}

// joinProblems returns an error with a line for each problem.
func joinProblems(problems []document.Problem) error {
	errs := make([]error, 0, len(problems))
	for _, p := range problems {
		if len(p.Path) == 0 {
			p.Path = document.Path{"handle"}
		}
		errs = append(errs, errors.New(p.String()))
	}
	return errors.Join(errs...)
}

// parseHandle returns the readable parts of a handle, and the problems of the rest.
func parseHandle(text string) (Handle, []document.Problem) {
	query, problem := handleQuery(text)
	if problem != nil {
		return Handle{}, []document.Problem{*problem}
	}
	h, problems, readable := Handle{Parameters: map[string]string{}}, []document.Problem{}, map[string]bool{}
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		key, value, problem := handlePair(pair)
		if _, seen := readable[key]; seen && key != "" {
			problem = &document.Problem{Message: shownKey(key) + " is a duplicate", Hint: "keep one of them"}
		} else {
			readable[key] = problem == nil
		}
		switch {
		case problem != nil:
			problems = append(problems, *problem)
		case key == handleImage:
			h.BackingImage = value
		case key == handleType:
			h.SourceType = value
		case key == handleChecksum:
			h.Checksum = value
		default:
			h.Parameters[key] = value
		}
	}
	for _, key := range []string{handleImage, handleType} {
		value := map[string]string{handleImage: h.BackingImage, handleType: h.SourceType}[key]
		if ok, seen := readable[key]; !seen {
			problems = append(problems, document.Problem{Message: key + " is missing", Hint: handleHint})
		} else if ok && value == "" {
			problems = append(problems, document.Problem{Message: key + " is empty", Hint: handleHint})
		}
	}
	return h, problems
}

// handleQuery returns the text after the "?".
func handleQuery(text string) (string, *document.Problem) {
	rest, ok := strings.CutPrefix(text, handlePrefix)
	switch {
	case len(text) > maxHandle:
		return "", &document.Problem{Message: fmt.Sprintf("is longer than %d bytes", maxHandle)}
	case isVolumeHandle(text):
		return "", &document.Problem{Message: "is the handle of a snapshot or backup of a volume, not of a backing image", Hint: handleHint}
	case !ok:
		return "", &document.Problem{Message: "is not the handle of a backing image", Hint: handleHint}
	case !utf8.ValidString(text):
		return "", &document.Problem{Message: "is not UTF-8"}
	case strings.ContainsFunc(text, unicode.IsControl):
		return "", &document.Problem{Message: "contains a line break or another control character", Hint: "write it on one line"}
	case strings.Contains(text, "#"):
		return "", &document.Problem{Message: "contains a #, and Longhorn ignores the text after it", Hint: "write %23"}
	}
	authority, query, _ := strings.Cut(rest, "?")
	if _, err := url.Parse("bi://" + authority); err != nil {
		return "", &document.Problem{Message: "is invalid before the ?", Hint: handleHint}
	}
	if query == "" {
		return "", &document.Problem{Message: "has no values", Hint: handleHint}
	}
	return query, nil
}

// isVolumeHandle reports whether a handle is one of Longhorn's handles of volumes.
func isVolumeHandle(handle string) bool {
	return strings.HasPrefix(handle, "snap://") || strings.HasPrefix(handle, "bak://") || strings.HasPrefix(handle, "bs://")
}

// handlePair reads a pair of a query.
func handlePair(pair string) (key, value string, problem *document.Problem) {
	rawKey, rawValue, _ := strings.Cut(pair, "=")
	key, err := url.QueryUnescape(rawKey)
	if err != nil || !utf8.ValidString(key) || key == "" {
		return "", "", &document.Problem{Message: "has an unreadable key", Hint: "write a & in a value as %26"}
	}
	value, err = url.QueryUnescape(rawValue)
	switch {
	case err != nil:
		problem = &document.Problem{Message: shownKey(key) + " has a % without two hex digits", Hint: "write %25"}
	case strings.Contains(pair, ";"):
		problem = &document.Problem{Message: shownKey(key) + " contains a ;, and Longhorn ignores it then", Hint: "write %3B"}
	case !utf8.ValidString(value):
		problem = &document.Problem{Message: shownKey(key) + " is not UTF-8"}
	}
	return key, value, problem
}

var plainKey = regexp.MustCompile(`^[\w.,%/+-]{1,48}$`)

// shownKey returns a key for a message.
func shownKey(key string) string {
	if plainKey.MatchString(key) {
		return key
	}
	return fmt.Sprintf("%.40q", key)
}

// Encode writes the handle so that ParseHandle and Longhorn read the same. Its
// keys have the order of Longhorn's own handles, so that both handles are equal if no character
// must be escaped. Unlike Longhorn, Encode escapes these characters. Encode fails if the handle is
// invalid: without a name or a type, not UTF-8, or too long.
func (h Handle) Encode() (string, error) {
	values := url.Values{}
	for key, value := range h.Parameters {
		if key == "" || key == handleImage || key == handleType || key == handleChecksum {
			return "", fmt.Errorf("encode handle: %q is not a parameter of a source", key)
		}
		values.Set(key, value)
	}
	values.Set(handleImage, h.BackingImage)
	values.Set(handleType, h.SourceType)
	if h.Checksum != "" {
		values.Set(handleChecksum, h.Checksum)
	}
	for key, value := range values {
		if !utf8.ValidString(key) || !utf8.ValidString(value[0]) {
			return "", fmt.Errorf("encode handle: %s is not UTF-8", shownKey(key))
		}
	}
	if h.BackingImage == "" || h.SourceType == "" {
		return "", fmt.Errorf("encode handle: it needs %s and %s", handleImage, handleType)
	}
	// url.Values writes a space as "+". %20 is right for readers that do not know that this
	// is a query, too.
	text := handlePrefix + "backing?" + strings.ReplaceAll(values.Encode(), "+", "%20")
	if len(text) > maxHandle {
		return "", fmt.Errorf("encode handle: it would be longer than %d bytes", maxHandle)
	}
	return text, nil
}

// Check returns why the handle is invalid in every configuration. The error has a line for
// each mistake.
func (h Handle) Check() error {
	problems := h.problems()
	if err := ident.CheckName(LonghornName(h.BackingImage)); err != nil {
		problems = append(problems, document.Problem{Path: document.Path{handleImage}, Message: err.Error()})
	}
	return joinProblems(problems)
}

// Declares reports whether the handle declares its image if nothing else
// does. Other handles refer to an image that exists.
func (h Handle) Declares() bool {
	return len(h.Parameters) > 0 && (h.SourceType == download || h.SourceType == exportFromVolume)
}

// problems returns the mistakes that no handle of an image may have, with their paths in
// the handle, except those that a check of its values finds, too.
func (h Handle) problems() []document.Problem {
	s, ok := findSourceType(h.SourceType)
	if !ok {
		var names []string
		for _, s := range sourceTypes {
			names = append(names, s.name)
		}
		return []document.Problem{{Path: document.Path{handleType}, Message: "unknown type of source " + shownKey(h.SourceType), Hint: document.DidYouMean(h.SourceType, names)}}
	}
	var all []document.Problem
	for _, name := range slices.Sorted(maps.Keys(h.Parameters)) {
		at := document.Path{handleParameters, name}
		switch {
		case name == "checksum":
			all = append(all, document.Problem{Path: at, Message: "is not a parameter of a source: no image has it", Hint: "write " + handleChecksum})
		case !s.has(name):
			all = append(all, document.Problem{Path: at, Message: "is not a parameter of " + h.SourceType, Hint: s.knownParameters() + "; write a & in a value as %26"})
		case strings.Contains(h.Parameters[name], " "):
			all = append(all, document.Problem{Path: at, Message: "contains a space", Hint: "a + is a space in a handle: write %2B"})
		}
	}
	return all
}

// handleParameters is the field for the parameters of the source in the mapping of a
// handle.
const handleParameters = "parameters"

// value returns the handle as a mapping, all of it at one position.
func (h Handle) value(pos document.Position) *document.Value {
	mapping := func(texts map[string]string) *document.Value {
		v := &document.Value{Kind: document.Map, Pos: pos}
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			v.Fields = append(v.Fields, document.Field{Name: name, Pos: pos, Value: textValue(texts[name], pos)})
		}
		return v
	}
	v := mapping(map[string]string{handleImage: h.BackingImage, handleType: h.SourceType, handleChecksum: h.Checksum})
	if len(h.Parameters) > 0 {
		v.Fields = append(v.Fields, document.Field{Name: handleParameters, Pos: pos, Value: mapping(h.Parameters)})
	}
	return v
}
