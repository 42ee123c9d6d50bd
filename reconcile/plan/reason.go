package plan

import (
	"fmt"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// Reasons to create, complete or verify a copy.
const (
	CodeNoCopy           model.Code = "no-copy"           // a desired disk has no copy
	CodeCopyFailed       model.Code = "copy-failed"       // the copy on the disk is damaged or wrong
	CodeNeed             model.Code = "need"              // a replica on the disk needs the image, and its volume cannot start
	CodeNeedRejected     model.Code = "need-rejected"     // a replica needs the image, and the disk takes no copy
	CodeNeedIgnored      model.Code = "need-ignored"      // a replica needs the image, and followReplicas is false
	CodeNeedUndeclared   model.Code = "need-undeclared"   // a replica needs an image that is not declared, or not with this uuid
	CodeOtherWriter      model.Code = "other-writer"      // Longhorn's manager has written a temporary file of the image
	CodeResume           model.Code = "resume"            // a partial file exists
	CodeUploadActive     model.Code = "upload-active"     // a client sends the image
	CodeUnverifiedFile   model.Code = "unverified-file"   // a file exists that no valid record describes
	CodeVerifyRequested  model.Code = "verify-requested"  // an operator requested the verification
	CodeSuspect          model.Code = "suspect"           // a copy that was made of it has other bytes
	CodeDigestUnknown    model.Code = "digest-unknown"    // the declared checksum needs a digest that is not known yet
	CodeCfgMissing       model.Code = "cfg-missing"       // backing.cfg is missing or describes another file
	CodeManifestMissing  model.Code = "manifest-missing"  // the chunk manifest is missing
	CodeScrub            model.Code = "scrub"             // the last verification is older than scrubInterval
	CodeBackupMissing    model.Code = "backup-missing"    // no complete backup was found at the target
	CodeVerifyFirst      model.Code = "verify-first"      // an existing file is verified before anything is transferred
	CodeFirstCopy        model.Code = "first-copy"        // another disk creates the first copy
	CodeAwaitingUpload   model.Code = "awaiting-upload"   // no client has uploaded the image yet
	CodeUploadFailed     model.Code = "upload-failed"     // the last upload failed
	CodeUploadLost       model.Code = "upload-lost"       // an uploaded image has no ready copy any more
	CodeRetry            model.Code = "retry"             // the last attempt failed; the next one has a time
	CodeRejected         model.Code = "rejected"          // the attempt failed, and usually only another declaration helps; this is no Rejection
	CodeVerifyRequired   model.Code = "verify-required"   // settings.verify requires a signature, and the image does not declare verify
	CodeReplenishOff     model.Code = "replenish-off"     // concurrentReplenishPerNodeLimit is 0
	CodeConflict         model.Code = "conflict"          // ready copies differ, and no checksum is declared
	CodeChecksumMismatch model.Code = "checksum-mismatch" // a ready copy has other bytes than are declared
	CodeDamagedInUse     model.Code = "damaged-in-use"    // a damaged copy is in use and cannot be replaced
	CodeInvalidImage     model.Code = "invalid-image"     // the declaration of the image is invalid
	CodeTooFewDisks      model.Code = "too-few-disks"     // fewer disks can take a copy than are desired
	CodeNoMatchingDisk   model.Code = "no-matching-disk"  // no disk matches the selectors
	CodeAllEvicted       model.Code = "all-disks-evicted" // every disk that matches is to be evicted
	CodeNamedDisk        model.Code = "named-disk"        // a disk that the image names takes no copy
	CodeSuspended        model.Code = "suspended"         // the configuration suspends the image
	CodeCloneUndeclared  model.Code = "clone-undeclared"  // the image that is cloned is not declared
	CodeCloneNotReady    model.Code = "clone-not-ready"   // the image that is cloned has no ready copy
	CodeCloneConflict    model.Code = "clone-conflict"    // the copies of the image that is cloned differ
	CodeDigestPinned     model.Code = "digest-pinned"     // new bytes may replace lost ones only after the recovery interval
	CodePeerUnsettled    model.Code = "peer-unsettled"    // a copy on another node has a pending deletion
	CodePeerUnqueried    model.Code = "peer-unqueried"    // another node has not responded yet
	CodePeerUnreachable  model.Code = "peer-unreachable"  // another node does not respond
	CodePeerConfig       model.Code = "peer-config"       // another node has another configuration, or an invalid one
	CodePeerIdle         model.Code = "peer-idle"         // another node has had another configuration for the recovery interval, and does not create its copy
	CodeDiskUnavailable  model.Code = "disk-unavailable"  // a disk cannot be used
	CodeDiskReadOnly     model.Code = "disk-read-only"    // the file system of a disk is read-only
	CodeDiskNotManaged   model.Code = "disk-not-managed"  // this process does not manage the disk
	CodeDiskUnpublished  model.Code = "disk-unpublished"  // its node does not publish the disk
	CodeSchedulingOff    model.Code = "scheduling-off"    // allowScheduling is false
	CodeNoSpace          model.Code = "no-space"          // the disk has not enough space
	CodeCannotPrepare    model.Code = "cannot-prepare"    // the node has no replica or clone source for the first copy
	CodeObserveOnly      model.Code = "observe-only"      // the manager is in observe-only mode
	CodePeerRejects      model.Code = "peer-rejects"      // the node of the disk rejects the copy
	CodeTagMissing       model.Code = "tag-missing"       // the node or disk does not have a tag that a selector requires
	CodeRankedLower      model.Code = "ranked-lower"      // other disks rank higher
)

// Reasons to delete or to keep a copy.
const (
	CodeSurplus           model.Code = "surplus"             // the disk is not a desired disk
	CodeIncomplete        model.Code = "incomplete"          // a partial file on a disk that is not a desired disk
	CodeOldGeneration     model.Code = "old-generation"      // the copy has another uuid than the declared one
	CodeGenerationKept    model.Code = "generation-kept"     // an older generation that keepGenerations keeps
	CodeEviction          model.Code = "eviction"            // eviction of the disk is requested
	CodeOrphan            model.Code = "orphan"              // the image is not declared any more
	CodeDesired           model.Code = "desired"             // a requested clean-up is rejected: the disk is a desired disk
	CodeDeletionsOff      model.Code = "deletions-off"       // nothing is deleted: invalid configuration or --offline
	CodeConfigLoading     model.Code = "config-loading"      // a newer configuration is being loaded
	CodeInUse             model.Code = "in-use"              // a replica names the copy, or a process has it open
	CodeTooFewReady       model.Code = "too-few-ready"       // fewer copies are ready elsewhere than are required
	CodeUnproven          model.Code = "unproven"            // a copy elsewhere did not prove that it has its bytes
	CodeReadBack          model.Code = "read-back"           // the copy that replaces an evicted one is read in full first
	CodeCleanupInterval   model.Code = "cleanup-interval"    // the clean-up interval has not passed
	CodeBeingRead         model.Code = "being-read"          // a running job reads the copy
	CodeSourceOfCopy      model.Code = "source-of-copy"      // another copy is created from it first
	CodeSourceOfSuspended model.Code = "source-of-suspended" // a suspended image will be created from it
	CodeMaybeDeclared     model.Code = "maybe-declared"      // the file that declared the image is not understood as a whole
	CodeRemovalPending    model.Code = "removal-pending"     // a second read of the configuration must confirm the removal
	CodePruneLimit        model.Code = "prune-limit"         // more images were removed at once than pruneLimit allows
	CodeDiskDisputed      model.Code = "disk-disputed"       // disks of two nodes have the same diskUUID
	CodeUsageUnknown      model.Code = "usage-unknown"       // it is not known whether the image is in use somewhere
)

// IsBrief reports whether a reason to wait ends by itself, usually within seconds: another node responds, or
// counts as unreachable.
func IsBrief(c model.Code) bool {
	return c == CodePeerUnqueried || c == CodePeerUnsettled || c == CodeVerifyFirst
}

// because returns a reason with a formatted text.
func because(code model.Code, format string, args ...any) model.Reason {
	return model.Reason{Code: code, Text: fmt.Sprintf(format, args...)}
}

// JoinMax joins parts of a sentence. Of many parts it lists the first ones, and counts the
// others: "a, b, c and 7 more". It never counts a single part.
func JoinMax[T any](parts []T, separator string, most int) string {
	words := make([]string, len(parts))
	for i, part := range parts {
		words[i] = fmt.Sprint(part)
	}
	if more := len(words) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], separator), more)
	}
	return strings.Join(words, separator)
}
