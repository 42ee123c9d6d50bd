package plan

import (
	"fmt"
	"strings"
)

// Code is the stable name of a reason. Plans, the status document and the metrics have it, so
// that programs need not read the text. Codes are added; none changes its meaning.
type Code string

// Reasons to create, complete or verify a copy.
const (
	CodeNoCopy           Code = "no-copy"           // a desired disk has no copy
	CodeCopyFailed       Code = "copy-failed"       // the copy on the disk is damaged or wrong
	CodeDemand           Code = "demand"            // a replica on the disk needs the image, and its volume cannot start
	CodeDemandRejected   Code = "demand-rejected"   // a replica needs the image, and the disk takes no copy
	CodeDemandIgnored    Code = "demand-ignored"    // a replica needs the image, and followReplicas is false
	CodeDemandUndeclared Code = "demand-undeclared" // a replica needs an image that is not declared, or not with this uuid
	CodeOtherWriter      Code = "other-writer"      // Longhorn's manager has written a temporary file of the image
	CodeResume           Code = "resume"            // a partial file exists
	CodeUploadActive     Code = "upload-active"     // a client sends the image
	CodeUnverifiedFile   Code = "unverified-file"   // a file exists that no valid record describes
	CodeVerifyRequested  Code = "verify-requested"  // an operator requested the verification
	CodeSuspect          Code = "suspect"           // a copy that was made of it has other bytes
	CodeDigestUnknown    Code = "digest-unknown"    // the declared checksum needs a digest that is not known yet
	CodeCfgMissing       Code = "cfg-missing"       // backing.cfg is missing or describes another file
	CodeManifestMissing  Code = "manifest-missing"  // the chunk manifest is missing
	CodeScrub            Code = "scrub"             // the last verification is older than scrubInterval
	CodeBackupMissing    Code = "backup-missing"    // no complete backup was found at the target
	CodeVerifyFirst      Code = "verify-first"      // an existing file is verified before anything is transferred
	CodeFirstCopy        Code = "first-copy"        // another disk creates the first copy
	CodeAwaitingUpload   Code = "awaiting-upload"   // no client has uploaded the image yet
	CodeUploadFailed     Code = "upload-failed"     // the last upload failed
	CodeUploadLost       Code = "upload-lost"       // an uploaded image has no ready copy any more
	CodeRetry            Code = "retry"             // the last attempt failed; the next one has a time
	CodeRejected         Code = "rejected"          // the attempt failed, and usually only another declaration helps; no Rejection
	CodeVerifyRequired   Code = "verify-required"   // settings.verify requires a signature, and the image does not declare verify
	CodeReplenishOff     Code = "replenish-off"     // concurrentReplenishPerNodeLimit is 0
	CodeConflict         Code = "conflict"          // ready copies differ, and no checksum is declared
	CodeChecksumMismatch Code = "checksum-mismatch" // a ready copy has other bytes than are declared
	CodeDamagedInUse     Code = "damaged-in-use"    // a damaged copy is in use and cannot be replaced
	CodeInvalidImage     Code = "invalid-image"     // the declaration of the image is invalid
	CodeTooFewDisks      Code = "too-few-disks"     // fewer disks can take a copy than are desired
	CodeNoMatchingDisk   Code = "no-matching-disk"  // no disk matches the selectors
	CodeAllEvicted       Code = "all-disks-evicted" // every disk that matches is to be evicted
	CodeNamedDisk        Code = "named-disk"        // a disk that the image names takes no copy
	CodeSuspended        Code = "suspended"         // the configuration suspends the image
	CodeCloneUndeclared  Code = "clone-undeclared"  // the image that is cloned is not declared
	CodeCloneNotReady    Code = "clone-not-ready"   // the image that is cloned has no ready copy
	CodeCloneConflict    Code = "clone-conflict"    // the copies of the image that is cloned differ
	CodeDigestPinned     Code = "digest-pinned"     // new bytes may replace lost ones only after the recovery interval
	CodePeerUnsettled    Code = "peer-unsettled"    // a copy on another node has a pending deletion or is verified first
	CodePeerUnqueried    Code = "peer-unqueried"    // another node has not responded yet
	CodePeerUnreachable  Code = "peer-unreachable"  // another node does not respond
	CodePeerConfig       Code = "peer-config"       // another node has another configuration, or an invalid one
	CodePeerIdle         Code = "peer-idle"         // another node has had another configuration for the recovery interval, and does not create its copy
	CodeDiskUnavailable  Code = "disk-unavailable"  // a disk cannot be used
	CodeDiskReadOnly     Code = "disk-read-only"    // the file system of a disk is read-only
	CodeDiskNotManaged   Code = "disk-not-managed"  // this process does not manage the disk
	CodeDiskUnpublished  Code = "disk-unpublished"  // its node does not publish the disk
	CodeSchedulingOff    Code = "scheduling-off"    // allowScheduling is false
	CodeNoSpace          Code = "no-space"          // the disk has not enough space
	CodeCannotPrepare    Code = "cannot-prepare"    // the node has no replica or clone source for the first copy
	CodeObserveOnly      Code = "observe-only"      // the manager is in observe-only mode
	CodePeerRejects      Code = "peer-rejects"      // the node of the disk rejects the copy
	CodeTagMissing       Code = "tag-missing"       // the node or disk does not have a tag that a selector requires
	CodeRankedLower      Code = "ranked-lower"      // other disks rank higher
)

// Reasons to delete or to keep a copy.
const (
	CodeSurplus           Code = "surplus"             // the disk is not a desired disk
	CodeIncomplete        Code = "incomplete"          // a partial file on a disk that is not a desired disk
	CodeOldGeneration     Code = "old-generation"      // the copy has another uuid than the declared one
	CodeGenerationKept    Code = "generation-kept"     // an older generation that keepGenerations keeps
	CodeEviction          Code = "eviction"            // eviction of the disk is requested
	CodeOrphan            Code = "orphan"              // the image is not declared any more
	CodeDesired           Code = "desired"             // a requested clean-up is rejected: the disk is a desired disk
	CodeDeletionsOff      Code = "deletions-off"       // nothing is deleted: invalid configuration or --offline
	CodeConfigLoading     Code = "config-loading"      // a newer configuration is being loaded
	CodeInUse             Code = "in-use"              // a replica names the copy, or a process has it open
	CodeTooFewReady       Code = "too-few-ready"       // fewer copies are ready elsewhere than are required
	CodeUnproven          Code = "unproven"            // a copy elsewhere did not prove that it has its bytes
	CodeReadBack          Code = "read-back"           // the copy that replaces an evicted one is read in full first
	CodeCleanupInterval   Code = "cleanup-interval"    // the clean-up interval has not passed
	CodeBeingRead         Code = "being-read"          // a running job reads the copy
	CodeSourceOfCopy      Code = "source-of-copy"      // another copy is created from it first
	CodeSourceOfSuspended Code = "source-of-suspended" // a suspended image will be created from it
	CodeMaybeDeclared     Code = "maybe-declared"      // the file that declared the image is not understood as a whole
	CodeRemovalPending    Code = "removal-pending"     // a second read of the configuration must confirm the removal
	CodePruneLimit        Code = "prune-limit"         // more images were removed at once than pruneLimit allows
	CodeDiskDisputed      Code = "disk-disputed"       // disks of two nodes have the same diskUUID
	CodeUsageUnknown      Code = "usage-unknown"       // it is not known whether the image is in use somewhere
)

// IsBrief reports whether a reason to wait ends by itself, usually within seconds: another node responds, or
// it counts as one that does not.
func (c Code) IsBrief() bool {
	return c == CodePeerUnqueried || c == CodePeerUnsettled || c == CodeVerifyFirst
}

// Reason is why an action is planned, or why nothing is done. The zero value is no reason.
type Reason struct {
	Code Code `json:"code"`
	// Text is a sentence for people. It may change between versions.
	Text string `json:"reason"`
}

// IsZero reports whether there is no reason.
func (r Reason) IsZero() bool { return r == Reason{} }

// because returns a reason with a formatted text.
func because(code Code, format string, args ...any) Reason {
	return Reason{Code: code, Text: fmt.Sprintf(format, args...)}
}

// with returns the reason with another code, and with text appended to its own.
func (r Reason) with(code Code, format string, args ...any) Reason {
	return Reason{Code: code, Text: r.Text + fmt.Sprintf(format, args...)}
}

// JoinMax joins parts of a sentence. Of many parts it lists the first ones, and counts the
// others: "a, b, c and 7 more". It never counts a single part.
func JoinMax(parts []string, separator string, most int) string {
	if more := len(parts) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(parts[:most], separator), more)
	}
	return strings.Join(parts, separator)
}
